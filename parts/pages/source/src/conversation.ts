// A conversation as it is kept, and as the API is told it.
import type { Rival, ToolCall, Usage } from "./api";
import { TOOLS } from "./tools";

export interface Stats {
  firstTokenMs: number | null;
  reasoningMs: number;
  totalMs: number;
  usage: Usage | null;
}

/** A file, or a long paste, that goes with a message. */
export interface Attached {
  name: string;
  text: string;
  tokens: number | null; // null until the server has counted
}

export interface UserTurn {
  role: "user";
  text: string;
  files?: Attached[];
}

/** A token of an answer with its rivals, best first. */
export interface Token extends Omit<Rival, "logprob"> {
  logprob: number | null; // null where it was given, not drawn
  rivals: Rival[];
  ms: number; // since the token before
}

/** A death of the engine that an answer outlived. */
export interface Restart {
  after: number; // tokens
  ms: number; // without a token
}

export interface Call extends ToolCall {
  result: string | null;
}

export interface AssistantTurn {
  role: "assistant";
  id: string; // by which the server knows it while it is written
  reasoning: string;
  text: string;
  calls: Call[];
  finish: string | null;
  error: string | null;
  againAt: number | null; // ms since 1970, when the server will take what it refused
  stats: Stats | null;
  body: Body | null; // the request that gave it, less its messages, which are the turns before
  system: string; // the instructions of that request
  isCut: boolean; // the connection ended before the answer
  restarts: Restart[];
  tokenIds: number[]; // what the model wrote
  tokens: Token[]; // the same with probabilities, where they were asked for
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
  serverTools: string[]; // built-in tools of the server
  probabilities: boolean;
  ownTools: string; // JSON list of further ones
  runsTools: boolean;
  usesSchema: boolean;
  schema: string;
  more: Record<string, string>; // further fields of sampling by name, as typed
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
  attached: Attached[]; // to the draft
  queued: UserTurn[]; // sent when the answer that is written has ended
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
  serverTools: [],
  probabilities: false,
  ownTools: "",
  runsTools: true,
  usesSchema: false,
  schema: EXAMPLE_SCHEMA,
  more: {},
};

export function newConversation(settings: Settings = DEFAULTS): Conversation {
  const id = crypto.randomUUID?.() ?? String(Date.now());
  return {
    id,
    title: "New chat",
    turns: [],
    branches: [],
    orders: {},
    draft: "",
    attached: [],
    queued: [],
    touched: Date.now(),
    settings,
  };
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
    attached: filesOf(held.attached),
    queued: turnsOf(Array.isArray(held.queued) ? held.queued : []).filter((turn) => turn.role === "user"),
    touched: typeof held.touched === "number" ? held.touched : 0,
    settings: { ...DEFAULTS, ...(held.settings && typeof held.settings === "object" ? held.settings : {}) },
  };
}

function turnsOf(values: unknown[]): Turn[] {
  return values.flatMap((value): Turn[] => {
    const turn = value as Partial<AssistantTurn> | null;
    if (!turn || typeof turn.text !== "string") return [];
    if ((turn.role as string) === "user") return [{ role: "user", text: turn.text, files: filesOf((value as UserTurn).files) }];
    const [calls, tokenIds, tokens, restarts] = [
      listOf(turn.calls),
      listOf(turn.tokenIds),
      listOf(turn.tokens),
      listOf(turn.restarts),
    ];
    // Kept while it was written, and never finished: the page was closed.
    const isCut = Boolean(turn.isCut) || (!turn.finish && !turn.error && tokenIds.length > 0);
    return [
      { ...newAnswer(), ...turn, role: "assistant", calls, tokenIds, tokens, restarts, isCut, events: [] } as AssistantTurn,
    ];
  });
}

const listOf = <T>(value: T[] | undefined): T[] => (Array.isArray(value) ? value : []);

function filesOf(values: unknown): Attached[] {
  return listOf(values as Partial<Attached>[]).flatMap((each) =>
    typeof each?.name === "string" && typeof each.text === "string"
      ? [{ name: each.name, text: each.text, tokens: each.tokens ?? null }]
      : [],
  );
}

function branchesOf(values: unknown): Branch[] {
  return (Array.isArray(values) ? (values as Partial<Branch>[]) : []).flatMap((each) =>
    typeof each?.at === "number" && Array.isArray(each.turns)
      ? [
          {
            at: each.at,
            order: Number(each.order) || 0,
            turns: turnsOf(each.turns),
            branches: branchesOf(each.branches),
            orders: each.orders ?? {},
          },
        ]
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

/** The turns without a question and what answered it; other courses that began there go with it. */
export function without(
  { turns, branches, orders }: Conversation,
  at: number,
): Pick<Conversation, "turns" | "branches" | "orders"> {
  const next = turns.findIndex((turn, index) => index > at && turn.role === "user");
  const end = next < 0 ? turns.length : next;
  const stays = (place: number) => place < at || place >= end;
  const moved = (place: number) => (place < at ? place : place - (end - at));
  return {
    turns: [...turns.slice(0, at), ...turns.slice(end)],
    branches: branches.filter((each) => stays(each.at)).map((each) => ({ ...each, at: moved(each.at) })),
    orders: Object.fromEntries(
      Object.entries(orders).flatMap(([place, order]) => (stays(Number(place)) ? [[moved(Number(place)), order]] : [])),
    ),
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
    id: "",
    reasoning: "",
    text: "",
    calls: [],
    finish: null,
    error: null,
    againAt: null,
    stats: null,
    body: null,
    system: "",
    isCut: false,
    restarts: [],
    tokenIds: [],
    tokens: [],
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
  for (const name of Object.keys(MORE)) setNumber(body, name, settings.more[name] ?? "");
  const stop = (settings.more.stop ?? "").split("\n").filter(Boolean);
  if (stop.length) body.stop = stop;
  if (settings.more.logit_bias?.trim()) body.logit_bias = parsed(settings.more.logit_bias, "The logit bias");
  const tools = toolsOf(settings);
  if (tools.length) body.tools = tools;
  if (settings.probabilities) Object.assign(body, PROBABILITIES);
  if (settings.usesSchema) {
    const schema = parsed(settings.schema, "The schema");
    body.response_format = { type: "json_schema", json_schema: { name: "answer", schema, strict: true } };
  }
  body.stream = true;
  body.stream_options = { include_usage: true };
  return body;
}

const PROBABILITIES = { logprobs: true, top_logprobs: 5, return_token_ids: true, return_token_logprobs: true };

/** The names that requests have for the server's built-in tools. */
export const SERVER_TOOLS: Record<string, string> = { browser: "web_search", python: "code_interpreter" };

function toolsOf(settings: Settings): unknown[] {
  const chosen = TOOLS.filter((tool) => settings.tools.includes(tool.name));
  const own = settings.ownTools.trim() ? parsed(settings.ownTools, "Further tools") : [];
  if (!Array.isArray(own)) throw new Error("Further tools must be a JSON list.");
  return [
    ...chosen.map(({ name, description, parameters }) => ({
      type: "function",
      function: { name, description, parameters, strict: true },
    })),
    ...settings.serverTools.map((name) => ({ type: SERVER_TOOLS[name] ?? name })),
    ...own,
  ];
}

/** What the numbers of the panel may be; `whole` for those that count. */
interface Range {
  least: number;
  most: number;
  whole?: boolean;
}

export const MORE: Record<string, Range> = {
  top_k: { least: 0, most: 1_000_000, whole: true },
  min_p: { least: 0, most: 1 },
  presence_penalty: { least: -2, most: 2 },
  frequency_penalty: { least: -2, most: 2 },
  repetition_penalty: { least: 0.01, most: 10 },
  min_tokens: { least: 0, most: 131072, whole: true },
  thinking_token_budget: { least: 0, most: 131072, whole: true },
};

export const RANGES: Record<string, Range> = {
  ...MORE,
  temperature: { least: 0, most: 2 },
  top_p: { least: 0.01, most: 1 },
  seed: { least: 0, most: Number.MAX_SAFE_INTEGER, whole: true },
  max_completion_tokens: { least: 1, most: 131072, whole: true },
};

/** Why a text is no number of the range, or nothing. */
export function wrong(key: string, text: string): string {
  const { least, most, whole } = RANGES[key]!;
  const value = Number(text);
  if (!text.trim() || (value >= least && value <= most && (!whole || Number.isInteger(value)))) return "";
  const range = most === Number.MAX_SAFE_INTEGER ? `${least} or more` : `${least} to ${most}`;
  return `${key} is ${JSON.stringify(text)}; it takes ${whole ? "a whole number, " : ""}${range}.`;
}

function setNumber(body: Body, key: string, text: string): void {
  const reason = wrong(key, text);
  if (reason) throw new Error(reason);
  if (text.trim()) body[key] = Number(text);
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
  return [...told, ...turns.filter((_, at) => isTold(turns, at)).flatMap(turnMessages)];
}

/** Whether an answer failed or is empty: nothing that was said. */
export const isVoid = (turn: AssistantTurn): boolean => Boolean(turn.error) || turn.isCut || (!turn.text && !turn.calls.length);

/** Whether the model is told a turn: a question that got no answer is not, unless it is the last. */
function isTold(turns: Turn[], at: number): boolean {
  const [turn, next] = [turns[at]!, turns[at + 1]];
  if (turn.role === "assistant") return !isVoid(turn);
  return next === undefined || (next.role === "assistant" && !isVoid(next));
}

function turnMessages(turn: Turn): unknown[] {
  if (turn.role === "user") return [{ role: "user", content: contentOf(turn) }];
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

/** What a question tells the model: its files first, each in a fence that its text does not close. */
export function contentOf({ text, files = [] }: UserTurn): string {
  const parts = files.map((file) => {
    const runs = file.text.match(/`{3,}/g) ?? [];
    const fence = "`".repeat(Math.max(3, ...runs.map((run) => run.length + 1)));
    return `${file.name}:\n${fence}\n${file.text}\n${fence}`;
  });
  return [...parts, text].filter(Boolean).join("\n\n");
}

export function titleOf(text: string): string {
  const line = text.trim().split("\n")[0] ?? "";
  return line.length > 40 ? `${line.slice(0, 40)}…` : line || "New chat";
}

const CHARACTERS_PER_TOKEN = 4; // of a draft, which nobody has counted

/** How many tokens of the context the next request takes, about; without guesses: those that the server has counted. */
export function contextUsed({ turns, draft, attached }: Conversation, isGuessed = true): number {
  const usage = turns.findLast((turn): turn is AssistantTurn => turn.role === "assistant" && Boolean(turn.stats?.usage))?.stats
    ?.usage;
  const said = usage
    ? usage.prompt_tokens + usage.completion_tokens - (usage.completion_tokens_details?.reasoning_tokens ?? 0)
    : 0;
  const guess = (text: string) => (isGuessed ? text.length / CHARACTERS_PER_TOKEN : 0);
  const files = attached.reduce((sum, file) => sum + (file.tokens ?? guess(file.text)), 0);
  return Math.round(said + files + guess(draft));
}
