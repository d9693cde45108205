// All that the page holds. Conversations are one record each in IndexedDB, shared by the browser's tabs.
import { createStore, delMany, entries, set, setMany, type UseStore } from "idb-keyval";
import { useEffect, useState } from "preact/hooks";
import { type Conversation, checked, newConversation, type Settings, slim, without } from "./conversation";
import { keepChosen, keepKey, readChosen, readKey } from "./kept";
import { CONNECTING, type Server } from "./server";
import { readLink } from "./share";

const OLD = "harmonium.conversations"; // an earlier version of this page kept all of them here
const SAVE_MS = 1000;

export interface State {
  chats: Conversation[]; // the last used first
  openId: string;
  isLoaded: boolean;
  running: ReadonlySet<string>;
  deleted: Conversation[]; // can be brought back
  problem: string; // why nothing is kept, or nothing
  apiKey: string;
  server: Server;
  drawer: "" | "chats" | "settings"; // what is open on a narrow screen
  dialog: Dialog | null;
}

/** What lies over the page. */
export type Dialog =
  | { kind: "request"; turn: number }
  | { kind: "compare" }
  | { kind: "keys" }
  | { kind: "batches" }
  | { kind: "matrix" };

let chosen = readChosen();
const first = newConversation(chosen);
let state: State = {
  chats: [first],
  openId: first.id,
  isLoaded: false,
  running: new Set(),
  deleted: [],
  problem: "",
  apiKey: readKey(),
  server: CONNECTING,
  drawer: "",
  dialog: null,
};
const listeners = new Set<() => void>();
const waiting = new Map<string, ReturnType<typeof setTimeout>>();
const channel = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel("harmonium.chats");
let database: UseStore | null = null;

export const now = (): State => state;

function put(part: Partial<State>): void {
  state = { ...state, ...part };
  for (const each of listeners) each();
}

/** A part of the state; the component is drawn again only when that part is another. */
export function useStore<T>(part: (state: State) => T): T {
  const [held, hold] = useState(() => part(state));
  useEffect(() => {
    const listener = () => hold(() => part(state));
    listeners.add(listener);
    listener();
    return () => void listeners.delete(listener);
  }, []);
  return held;
}

export function setKey(apiKey: string): void {
  keepKey(apiKey);
  put({ apiKey });
}

export const setServer = (server: Server): void => put({ server });
export const setDialog = (dialog: Dialog | null): void => put({ dialog });

/** Open or close a drawer of the narrow page. */
export const toggle = (drawer: State["drawer"]): void => put({ drawer: state.drawer === drawer ? "" : drawer });

/** Read what is kept; a record of another shape is left out, and left where it is. */
export async function load(): Promise<void> {
  const wanted = location.hash.slice(1);
  const shared = readLink(location.hash);
  try {
    database = createStore("harmonium", "chats");
    const found = (await entries<string, unknown>(database)).map(([, value]) => checked(value));
    const chats = [...found, ...(await fromOldPage())].filter((each) => each !== null);
    chats.sort((a, b) => b.touched - a.touched);
    const early = state.chats.find((each) => each.id === first.id)!; // what was typed meanwhile stays
    if (!chats.length || early !== first) chats.unshift(early);
    const open = chats.find((each) => each.id === wanted && early === first) ?? chats[0]!;
    put({ chats, openId: open.id, isLoaded: true });
    if (shared) beginWith(shared);
  } catch (error) {
    database = null;
    put({ isLoaded: true, problem: `Conversations are not kept: ${(error as Error).message}` });
  }
  channel?.addEventListener("message", ({ data }) => void taken(data));
}

/** What an earlier version kept; it goes from there once it is kept here. */
async function fromOldPage(): Promise<(Conversation | null)[]> {
  try {
    const kept = JSON.parse(localStorage.getItem(OLD) ?? "[]") as unknown[];
    const found = kept.map(checked);
    for (const each of found) if (each) await set(each.id, slim(each), database!);
    localStorage.removeItem(OLD);
    return found;
  } catch {
    return [];
  }
}

/** What another tab changed. */
function taken({ chat, gone }: { chat?: unknown; gone?: string[] }): void {
  if (gone !== undefined) {
    drop(gone);
    return;
  }
  const found = checked(chat);
  if (!found || state.running.has(found.id)) return;
  const rest = state.chats.filter((each) => each.id !== found.id);
  const own = state.chats.find((each) => each.id === found.id);
  put({ chats: [own ? { ...found, draft: own.draft } : found, ...rest].sort((a, b) => b.touched - a.touched) });
}

/** Keep conversations: all at once, so that a page that closes now has kept all or none. */
async function save(...chats: Conversation[]): Promise<void> {
  if (!database) return;
  const records = chats.map(slim);
  try {
    await setMany(
      records.map((record) => [record.id, record]),
      database,
    );
    for (const chat of records) channel?.postMessage({ chat });
    if (state.problem) put({ problem: "" });
  } catch (error) {
    put({
      problem: `This browser could not keep the conversation: ${(error as Error).message}. Export it before you close the page.`,
    });
  }
}

/** Change a conversation. It is kept within a second, also while an answer streams. */
export function change(id: string, part: Partial<Conversation>): void {
  // A turn that comes takes its conversation to the top; the tokens of one do not, lest rows jump.
  const isMoved = part.turns !== undefined && part.turns.length !== state.chats.find((each) => each.id === id)?.turns.length;
  const stamp = isMoved ? { touched: Date.now() } : {};
  const chats = state.chats.map((each) => (each.id === id ? { ...each, ...part, ...stamp } : each));
  put({ chats: isMoved ? chats.sort((a, b) => b.touched - a.touched) : chats });
  if (!waiting.has(id))
    waiting.set(
      id,
      setTimeout(() => flush(id), SAVE_MS),
    );
}

function flush(id: string): void {
  clearTimeout(waiting.get(id));
  waiting.delete(id);
  const chat = state.chats.find((each) => each.id === id);
  if (chat && (chat.turns.length || chat.draft || chat.attached.length)) void save(chat);
}

/** Keep everything now: the page may be closing. */
export function flushAll(): void {
  for (const id of [...waiting.keys()]) flush(id);
}

export function setRunning(id: string, isRunning: boolean): void {
  const running = new Set(state.running);
  if (isRunning) running.add(id);
  else running.delete(id);
  put({ running });
  if (!isRunning) flush(id);
}

export function open(id: string): void {
  history.replaceState(null, "", `#${id}`);
  put({ openId: id });
}

/** Change the settings of the open conversation by hand: those that are begun later have them, too. */
export function choose(part: Partial<Settings>): void {
  keepChosen((chosen = { ...chosen, ...part }));
  setSettings(part);
}

/** Change the settings of the open conversation alone. */
export function setSettings(part: Partial<Settings>): void {
  const { settings } = state.chats.find((each) => each.id === state.openId)!;
  change(state.openId, { settings: { ...settings, ...part } });
}

/** Open a new conversation, or the empty one that is already there. */
export function begin(): void {
  const empty = state.chats.find((each) => !each.turns.length && !each.draft);
  const chat = empty ? { ...empty, settings: chosen, touched: Date.now() } : newConversation(chosen);
  put({ chats: [chat, ...state.chats.filter((each) => each.id !== chat.id)] });
  open(chat.id);
}

/** Open a new conversation with a draft; its settings are its own. */
export function beginWith({ text, settings }: { text: string; settings: Settings }): void {
  begin();
  change(state.openId, { draft: text, settings });
}

/** Delete a question with its answer. */
export function removeTurn(id: string, at: number): void {
  const chat = state.chats.find((each) => each.id === id)!;
  put({ deleted: [chat] });
  change(id, without(chat, at));
}

/** Delete conversations; those that answer now stay. */
export function remove(ids: string[]): void {
  const gone = ids.filter((id) => !state.running.has(id));
  const deleted = state.chats.filter((each) => gone.includes(each.id) && each.turns.length > 0);
  drop(gone);
  put({ deleted });
  channel?.postMessage({ gone });
  if (database) void delMany(gone, database);
}

function drop(ids: string[]): void {
  for (const id of ids) {
    clearTimeout(waiting.get(id));
    waiting.delete(id);
  }
  const left = state.chats.filter((each) => !ids.includes(each.id));
  if (!left.length) left.push(newConversation(chosen));
  put({ chats: left });
  if (ids.includes(state.openId)) open(left[0]!.id);
}

export function bringBack(): void {
  const { deleted } = state;
  const others = state.chats.filter(({ id, turns, draft }) => (turns.length || draft) && !deleted.some((each) => each.id === id));
  put({ deleted: [], chats: [...deleted, ...others].sort((a, b) => b.touched - a.touched) });
  if (deleted[0]) open(deleted[0].id);
  void save(...deleted);
}

export function forgetDeleted(): void {
  put({ deleted: [] });
}

/** A conversation as a text to read. */
export function asMarkdown({ title, turns }: Conversation): string {
  const parts = turns.flatMap((turn) => {
    const calls = turn.role === "assistant" ? turn.calls : [];
    const told = calls.map((call) => `Calls \`${call.name}(${call.arguments})\`: \`${call.result ?? ""}\``);
    const files = turn.role === "user" ? (turn.files ?? []).map((file) => `File: ${file.name}`) : [];
    return [`## ${turn.role === "user" ? "You" : "Assistant"}`, ...files, ...told, turn.text].filter(Boolean);
  });
  return `${[`# ${title}`, ...parts].join("\n\n")}\n`;
}

/** All conversations as the text of a file. */
export function exported(): string {
  return JSON.stringify({ harmonium: 1, chats: state.chats.filter((each) => each.turns.length).map(slim) }, null, 1);
}

/** Take conversations from such a file; returns how many. Throws where it is none. */
export function take(text: string): number {
  const held = JSON.parse(text) as { chats?: unknown };
  if (!Array.isArray(held?.chats)) throw new Error("The file holds no conversations of this page.");
  const found = held.chats.map(checked).filter((each) => each !== null);
  const ids = new Set(found.map((each) => each.id));
  put({ chats: [...found, ...state.chats.filter((each) => !ids.has(each.id))].sort((a, b) => b.touched - a.touched) });
  void save(...found);
  return found.length;
}
