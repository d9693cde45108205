// What is asked of the model: sending, queueing, continuing, and the answers that are written now.
import { answer, type Begun, type When } from "./chat";
import {
  type AssistantTurn,
  branch,
  type Call,
  type Conversation,
  type Settings,
  type Turn,
  titleOf,
  type UserTurn,
} from "./conversation";
import { change, now, setRunning } from "./store";

const runs = new Map<string, AbortController>();

const chatOf = (id: string): Conversation | undefined => now().chats.find((each) => each.id === id);

/** Answer the turns of a conversation. Those from `at` on stay as another course; without it they are replaced. */
async function run(chat: Conversation, turns: Turn[], at: number | null, begun?: Begun, when?: When): Promise<void> {
  const { server, apiKey: key } = now();
  if (!server.model || runs.has(chat.id)) return;
  const stop = new AbortController();
  runs.set(chat.id, stop);
  change(chat.id, { ...(at === null ? {} : branch(chat, at)), turns });
  setRunning(chat.id, true);
  const show = paced((grown) => change(chat.id, { turns: grown }));
  try {
    await answer(turns, {
      model: server.model.id,
      key,
      settings: chat.settings,
      signal: stop.signal,
      begun,
      when,
      show: show.later,
    });
  } finally {
    show.now();
    runs.delete(chat.id);
    setRunning(chat.id, false);
  }
  sendQueued(chat.id);
}

/** Ask in a conversation; while it answers, the question waits. */
export async function send(id: string, question: UserTurn, settings?: Settings, when?: When): Promise<void> {
  const chat = chatOf(id)!;
  if (settings) change(id, { settings });
  if (runs.has(id)) {
    change(id, { queued: [...chat.queued, question] });
    return;
  }
  if (!chat.turns.length) change(id, { title: titleOf(question.text || question.files?.[0]?.name || "") });
  const { turns } = chat;
  await run(chatOf(id)!, [...turns, question], turns.length, undefined, when);
}

/** What waits is sent after an answer that ended by itself. */
function sendQueued(id: string): void {
  const chat = chatOf(id);
  const last = chat?.turns.at(-1);
  if (!chat?.queued.length || last?.role !== "assistant" || last.error || last.isCut || last.finish === "stopped") return;
  const [question, ...queued] = chat.queued;
  change(id, { queued });
  void send(id, question!);
}

/** Take a question that waits out of the queue, into the draft. */
export function unqueue(id: string, at: number): void {
  const chat = chatOf(id)!;
  const question = chat.queued[at];
  if (!question) return;
  const draft = [chat.draft, question.text].filter(Boolean).join("\n\n");
  change(id, {
    queued: chat.queued.filter((_, index) => index !== at),
    draft,
    attached: [...chat.attached, ...(question.files ?? [])],
  });
}

export const stop = (id: string): void => runs.get(id)?.abort();

export function edit(id: string, index: number, text: string): void {
  const chat = chatOf(id)!;
  const before = chat.turns[index] as UserTurn;
  const question = { ...before, text };
  if (!index && chat.title === titleOf(before.text)) change(id, { title: titleOf(text) }); // not one that was given
  void run(chatOf(id)!, [...chat.turns.slice(0, index), question], index);
}

/** Ask once more; `settings` hold for this answer only. */
export async function retry(id: string, index: number, settings?: Partial<Settings>, when?: When): Promise<void> {
  const chat = chatOf(id)!;
  const isFailed = (chat.turns[index] as AssistantTurn).error !== null; // its place is taken
  const asked = { ...chat, settings: { ...chat.settings, ...settings } };
  await run(asked, chat.turns.slice(0, index), isFailed ? null : index, undefined, when);
}

export function sendResults(id: string, index: number, calls: Call[]): void {
  const chat = chatOf(id)!;
  const turn = chat.turns[index] as AssistantTurn;
  void run(chat, [...chat.turns.slice(0, index), { ...turn, calls }], chat.turns.length);
}

/** Write the rest of an answer that was cut off, in its place. */
export function resume(id: string, index: number): void {
  const chat = chatOf(id)!;
  const turn = chat.turns[index] as AssistantTurn;
  void run(chat, chat.turns.slice(0, index), null, { turn, ids: withoutEnd(turn.tokenIds), tokens: turn.tokens });
}

/** Another course of an answer: the same up to a token, then one of its rivals. */
export function continueWith(id: string, index: number, at: number, rival: { id: number; token: string; logprob: number }): void {
  const chat = chatOf(id)!;
  const turn = chat.turns[index] as AssistantTurn;
  const tokens = [...turn.tokens.slice(0, at), { ...turn.tokens[at]!, ...rival }];
  const begun = { ...turn, text: "", reasoning: "", calls: [], restarts: [], tokens: [], tokenIds: [] };
  void run(chat, chat.turns.slice(0, index), index, { turn: begun, ids: [...turn.tokenIds.slice(0, at), rival.id], tokens });
}

const ENDS = new Set([200002, 200012, 199999]); // <|return|>, <|call|>, <|endoftext|>

function withoutEnd(ids: number[]): number[] {
  const end = ids.findIndex((id) => ENDS.has(id));
  return end < 0 ? ids : ids.slice(0, end);
}

/** Draw at most once a frame, however quickly tokens come. Only the turn that grows is another object. */
function paced(show: (turns: Turn[]) => void) {
  let latest: Turn[] | null = null;
  const draw = () => {
    if (latest) show(latest.map((turn, index, all) => (index === all.length - 1 ? { ...turn } : turn)));
    latest = null;
  };
  return {
    later: (turns: Turn[]) => {
      if (!latest) requestAnimationFrame(draw);
      latest = turns;
    },
    now: draw,
  };
}
