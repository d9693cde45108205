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
  body: Body | null; // the request that gave it, less its messages, which are the turns before
  system: string; // the instructions of that request
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

/** A conversation's other course from one of its turns on. */
export interface Branch {
  at: number;
  order: number; // its place among the courses at that turn
  turns: Turn[];
  branches: Branch[];
  orders: Record<number, number>;
}

export interface Conversation {
  id: string;
  title: string;
  turns: Turn[];
  branches: Branch[];
  orders: Record<number, number>; // the place of the course that is shown, by turn
  draft: string;
  touched: number; // ms since 1970
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
  const id = crypto.randomUUID?.() ?? String(Date.now());
  return { id, title: "New chat", turns: [], branches: [], orders: {}, draft: "", touched: Date.now(), settings };
}

/** A kept record as a conversation, or null where it is none: another version, or another hand. */
export function checked(value: unknown): Conversation | null {
  const held = value as Partial<Conversation> | null;
  if (!held || typeof held !== "object" || typeof held.id !== "string" || !Array.isArray(held.turns)) return null;
  const fresh = newConversation();
  return {
    ...fresh,
    id: held.id,
    title: typeof held.title === "string" ? held.title : fresh.title,
    turns: turnsOf(held.turns),
    branches: branchesOf(held.branches),
    orders: held.orders && typeof held.orders === "object" ? held.orders : {},
    draft: typeof held.draft === "string" ? held.draft : "",
    touched: typeof held.touched === "number" ? held.touched : 0,
    settings: { ...DEFAULTS, ...(held.settings && typeof held.settings === "object" ? held.settings : {}) },
  };
}

function turnsOf(values: unknown[]): Turn[] {
  return values.flatMap((value): Turn[] => {
    const turn = value as Partial<AssistantTurn> | null;
    if (!turn || typeof turn.text !== "string") return [];
    if ((turn.role as string) === "user") return [{ role: "user", text: turn.text }];
    const calls = Array.isArray(turn.calls) ? turn.calls : [];
    const tokenIds = Array.isArray(turn.tokenIds) ? turn.tokenIds : [];
    return [{ ...newAnswer(), ...turn, role: "assistant", calls, tokenIds, events: [] } as AssistantTurn];
  });
}

function branchesOf(values: unknown): Branch[] {
  return (Array.isArray(values) ? (values as Partial<Branch>[]) : []).flatMap((each) =>
    typeof each?.at === "number" && Array.isArray(each.turns)
      ? [{ at: each.at, order: Number(each.order) || 0, turns: turnsOf(each.turns), branches: branchesOf(each.branches), orders: each.orders ?? {} }]
      : [],
  );
}

/** As it is kept: without the streams' raw lines, which are the largest part. */
export function slim(chat: Conversation): Conversation {
  const bare = (turns: Turn[]) => turns.map((turn) => (turn.role === "assistant" ? { ...turn, events: [] } : turn));
  const bareBranch = (each: Branch): Branch => ({ ...each, turns: bare(each.turns), branches: each.branches.map(bareBranch) });
  return { ...chat, turns: bare(chat.turns), branches: chat.branches.map(bareBranch) };
}

/** Put another course in place of the turns from `at` on, and keep those. */
export function branch(chat: Conversation, at: number): Pick<Conversation, "branches" | "orders"> {
  const left = chat.turns.slice(at);
  if (!left.length) return { branches: chat.branches, orders: chat.orders };
  const here = chat.branches.filter((each) => each.at === at);
  const shown = chat.orders[at] ?? 0;
  const [before, after] = [ordersOf(chat, (turn) => turn < at), ordersOf(chat, (turn) => turn > at)];
  const old: Branch = { at, order: shown, turns: left, branches: chat.branches.filter((each) => each.at > at), orders: after };
  const order = Math.max(shown, ...here.map((each) => each.order)) + 1;
  return { branches: [...chat.branches.filter((each) => each.at <= at), old], orders: { ...before, [at]: order } };
}

/** Show the course before or after the one that is shown at a turn. */
export function turnTo(chat: Conversation, at: number, step: 1 | -1): Partial<Conversation> {
  const { place, orders } = courses(chat, at);
  const wanted = orders[place + step];
  const other = chat.branches.find((each) => each.at === at && each.order === wanted);
  if (!other) return {};
  const moved = branch(chat, at);
  const kept = moved.branches.filter((each) => each !== other);
  return {
    turns: [...chat.turns.slice(0, at), ...other.turns],
    branches: [...kept, ...other.branches],
    orders: { ...moved.orders, ...other.orders, [at]: other.order },
  };
}

const ordersOf = (chat: Conversation, isWanted: (turn: number) => boolean): Record<number, number> =>
  Object.fromEntries(Object.entries(chat.orders).filter(([turn]) => isWanted(Number(turn))));

/** The places of all courses at a turn, in order, and which of them is shown. */
export function courses(chat: Conversation, at: number): { place: number; orders: number[] } {
  const shown = chat.orders[at] ?? 0;
  const orders = [shown, ...chat.branches.filter((each) => each.at === at).map((each) => each.order)].sort((a, b) => a - b);
  return { place: orders.indexOf(shown), orders };
}

/** The whole request that gave the answer at a turn. */
export function requestOf(turns: Turn[], at: number): Body {
  const turn = turns[at] as AssistantTurn;
  const { model, ...rest } = turn.body!;
  return { model, messages: messagesOf(turns.slice(0, at), turn.system), ...rest };
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
    system: "",
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
  if (turn.error || (!turn.text && !turn.calls.length)) return []; // failed or empty: not part of what was said
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
