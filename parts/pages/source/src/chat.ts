// One answer from request to end, and the loop through the page's tools.
import { ApiError, Cut, type Piece, streamChat, type TokenEntry, worded } from "./api";
import { type AssistantTurn, bodyOf, newAnswer, requestOf, type Settings, type Token, type Turn } from "./conversation";
import { runTool } from "./tools";

export const MAX_ROUNDS = 8;

/** What is there already of an answer that continues. */
export interface Begun {
  turn: AssistantTurn; // shown until the first of it comes
  ids: number[];
  tokens: Token[];
}

/** What is done as soon as so many tokens have come, whether or not they are drawn yet. */
export interface When {
  tokens: number;
  act: () => void;
}

export interface Asking {
  model: string;
  key: string;
  settings: Settings;
  signal: AbortSignal;
  begun?: Begun;
  server?: string; // another one than this page's: its address with a slash
  when?: When;
  /** Called with the turns as they grow. */
  show: (turns: Turn[]) => void;
}

/** Answer `turns`, running the page's own tools where the settings allow it. */
export async function answer(turns: Turn[], asking: Asking): Promise<void> {
  let { begun } = asking;
  for (let round = 0; round < MAX_ROUNDS; round++) {
    const reply: AssistantTurn = { ...(begun?.turn ?? newAnswer()), error: null, againAt: null, finish: null, isCut: false };
    const shown = [...turns, reply];
    await fill(reply, turns, asking, begun, () => asking.show([...shown]));
    begun = undefined;
    const isDone = !reply.calls.length || reply.error || reply.isCut || !asking.settings.runsTools;
    for (const call of isDone ? [] : reply.calls) call.result = runTool(call.name, call.arguments);
    asking.show([...shown]);
    if (isDone || reply.calls.some((call) => call.result === null)) return;
    turns = shown;
    if (round === MAX_ROUNDS - 1) reply.finish = "rounds";
  }
  asking.show([...turns]);
}

async function fill(
  reply: AssistantTurn,
  turns: Turn[],
  { model, key, settings, signal, server, when }: Asking,
  begun: Begun | undefined,
  show: () => void,
): Promise<void> {
  const began = performance.now();
  let first: number | null = null;
  let last = began;
  let gone = 0; // while the engine was started again
  let isShowingOld = Boolean(begun);
  let isDone = !when;
  const stats = { firstTokenMs: null as number | null, reasoningMs: 0, totalMs: 0, usage: null };
  reply.stats = stats;
  show();
  try {
    const whole = begun?.turn.body // what goes on asks what was asked
      ? { ...requestOf([...turns, begun.turn], turns.length), model }
      : bodyOf(model, turns, settings);
    const { messages, ...asked } = whole;
    if (begun) asked.continue_token_ids = begun.ids;
    reply.body = asked;
    if (!begun?.turn.body) reply.system = settings.system;
    for await (const piece of streamChat({ ...asked, messages }, key, signal, server)) {
      const now = performance.now();
      if (isShowingOld && (piece.kind === "ids" || piece.kind === "reasoning" || piece.kind === "content")) {
        Object.assign(reply, { text: "", reasoning: "", calls: [], tokenIds: [], tokens: [] });
        isShowingOld = false; // the stream begins with all of it
      }
      if (piece.kind === "reasoning" || piece.kind === "content" || piece.kind === "call") {
        first ??= now;
        stats.firstTokenMs = first - began;
        if (piece.kind === "reasoning") stats.reasoningMs = now - first - gone;
      }
      if (piece.kind === "restart" && first !== null) gone += now - Math.max(last, first);
      stats.totalMs = now - began;
      take(reply, piece, now - last, begun);
      if (piece.kind === "ids") last = now;
      if (!isDone && reply.tokenIds.length >= when!.tokens) {
        isDone = true;
        when!.act();
      }
      show();
    }
  } catch (error) {
    if ((error as Error).name === "AbortError") reply.finish = "stopped";
    else if (error instanceof Cut && reply.tokenIds.length) reply.isCut = true;
    else {
      reply.error = worded(error as Error);
      const after = error instanceof ApiError ? error.afterS : null;
      reply.againAt = after === null ? null : Date.now() + after * 1000;
    }
  }
  stats.totalMs = performance.now() - began;
  show();
}

function take(reply: AssistantTurn, piece: Piece, sinceMs: number, begun: Begun | undefined): void {
  switch (piece.kind) {
    case "reasoning":
      reply.reasoning += piece.text;
      break;
    case "content":
      reply.text += piece.text;
      break;
    case "call": {
      const call = (reply.calls[piece.index] ??= { id: "", name: "", arguments: "", result: null });
      if (piece.id) call.id = piece.id;
      if (piece.name) call.name = piece.name;
      call.arguments += piece.arguments ?? "";
      break;
    }
    case "finish":
      reply.finish = piece.reason;
      break;
    case "usage":
      reply.stats!.usage = piece.usage;
      break;
    case "ids":
      reply.tokens.push(...tokensOf(piece.entries ?? [], reply.tokens.length, sinceMs, begun));
      reply.tokenIds.push(...piece.ids);
      break;
    case "begun":
      reply.id = piece.id;
      break;
    case "restart":
      reply.restarts = [...reply.restarts, { after: reply.tokenIds.length, ms: sinceMs }];
      break;
    case "event":
      reply.events.push(piece.line);
  }
}

/** The entries of a chunk; of those that were given with the request, what was known before. */
function tokensOf(entries: (TokenEntry | null)[], from: number, ms: number, begun: Begun | undefined): Token[] {
  return entries.flatMap((entry, at): Token[] => {
    const known = begun?.tokens[from + at];
    if (!entry) return known ? [known] : [];
    const { top_logprobs: rivals, ...token } = entry;
    return [{ ...token, rivals, ms: ms / entries.length }];
  });
}
