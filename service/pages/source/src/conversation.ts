// A conversation as it is kept, and as the API is told it.
import type { ToolCall, Usage } from "./api";
import { TOOLS } from "./tools";

export interface Stats {
  firstTokenMs: number | null;
  reasoningMs: number;
  totalMs: number;
  usage: Usage | null;
}

export interface UserTurn {
  role: "user";
  text: string;
}

export interface Call extends ToolCall {
  result: string | null;
}

export interface AssistantTurn {
  role: "assistant";
  reasoning: string;
  text: string;
  calls: Call[];
  finish: string | null;
  error: string | null;
  stats: Stats | null;
  body: Body | null; // the request that gave it
  tokenIds: number[]; // what the model wrote
  events: string[]; // the stream as it came
}

export type Turn = UserTurn | AssistantTurn;

export interface Settings {
  system: string;
  effort: "low" | "medium" | "high";
  temperature: string; // as typed; empty: the server's default
  topP: string;
  seed: string;
  maxTokens: string;
  tools: string[]; // names of the page's own tools
  ownTools: string; // JSON list of further ones
  runsTools: boolean;
  usesSchema: boolean;
  schema: string;
}

export interface Conversation {
  id: string;
  title: string;
  turns: Turn[];
  settings: Settings;
}

export type Body = Record<string, unknown>;

export const EXAMPLE_SCHEMA = `{
  "type": "object",
  "properties": {
    "answer": { "type": "string" },
    "confidence": { "type": "number", "minimum": 0, "maximum": 1 }
  },
  "required": ["answer", "confidence"],
  "additionalProperties": false
}`;

export const DEFAULTS: Settings = {
  system: "",
  effort: "medium",
  temperature: "",
  topP: "",
  seed: "",
  maxTokens: "",
  tools: [],
  ownTools: "",
  runsTools: true,
  usesSchema: false,
  schema: EXAMPLE_SCHEMA,
};

export function newConversation(settings: Settings = DEFAULTS): Conversation {
  return { id: crypto.randomUUID?.() ?? String(Date.now()), title: "New chat", turns: [], settings };
}

export function newAnswer(): AssistantTurn {
  return {
    role: "assistant",
    reasoning: "",
    text: "",
    calls: [],
    finish: null,
    error: null,
    stats: null,
    body: null,
    tokenIds: [],
    events: [],
  };
}

/** The request for the next answer; throws with the field's name where a setting cannot be read. */
export function bodyOf(model: string, turns: Turn[], settings: Settings): Body {
  const body: Body = { model, messages: messagesOf(turns, settings.system) };
  body.reasoning_effort = settings.effort;
  setNumber(body, "temperature", settings.temperature);
  setNumber(body, "top_p", settings.topP);
  setNumber(body, "seed", settings.seed);
  setNumber(body, "max_completion_tokens", settings.maxTokens);
  const tools = toolsOf(settings);
  if (tools.length) body.tools = tools;
  if (settings.usesSchema) {
    const schema = parsed(settings.schema, "The schema");
    body.response_format = { type: "json_schema", json_schema: { name: "answer", schema, strict: true } };
  }
  body.stream = true;
  body.stream_options = { include_usage: true };
  return body;
}

function toolsOf(settings: Settings): unknown[] {
  const chosen = TOOLS.filter((tool) => settings.tools.includes(tool.name));
  const own = settings.ownTools.trim() ? parsed(settings.ownTools, "Further tools") : [];
  if (!Array.isArray(own)) throw new Error("Further tools must be a JSON list.");
  return [
    ...chosen.map(({ name, description, parameters }) => ({
      type: "function",
      function: { name, description, parameters, strict: true },
    })),
    ...own,
  ];
}

function setNumber(body: Body, key: string, text: string): void {
  if (!text.trim()) return;
  const value = Number(text);
  if (Number.isNaN(value)) throw new Error(`${key} is ${JSON.stringify(text)}, which is no number.`);
  body[key] = value;
}

function parsed(text: string, what: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${what} is not valid JSON: ${(error as Error).message}`);
  }
}

function messagesOf(turns: Turn[], system: string): unknown[] {
  const told = system.trim() ? [{ role: "system", content: system }] : [];
  return [...told, ...turns.flatMap(turnMessages)];
}

function turnMessages(turn: Turn): unknown[] {
  if (turn.role === "user") return [{ role: "user", content: turn.text }];
  if (!turn.calls.length) return [{ role: "assistant", content: turn.text }];
  const calls = turn.calls.map((call) => ({
    id: call.id,
    type: "function",
    function: { name: call.name, arguments: call.arguments },
  }));
  // The thoughts before a call are part of the prompt until the answer is complete.
  const message = { role: "assistant", content: turn.text || null, tool_calls: calls };
  return [
    turn.reasoning ? { ...message, reasoning: turn.reasoning } : message,
    ...turn.calls.map((call) => ({ role: "tool", tool_call_id: call.id, content: call.result ?? "" })),
  ];
}

export function titleOf(text: string): string {
  const line = text.trim().split("\n")[0] ?? "";
  return line.length > 40 ? `${line.slice(0, 40)}…` : line || "New chat";
}
