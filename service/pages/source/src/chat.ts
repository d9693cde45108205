// One answer from request to end, and the loop through the page's tools.
import { streamChat, worded, type Piece } from "./api";
import { bodyOf, newAnswer, type AssistantTurn, type Settings, type Turn } from "./conversation";
import { runTool } from "./tools";

const MAX_ROUNDS = 8;

export interface Asking {
  model: string;
  key: string;
  settings: Settings;
  signal: AbortSignal;
  /** Called with the turns as they grow. */
  show: (turns: Turn[]) => void;
}

/** Answer `turns`, running the page's own tools where the settings allow it. */
export async function answer(turns: Turn[], asking: Asking): Promise<void> {
  for (let round = 0; round < MAX_ROUNDS; round++) {
    const reply = newAnswer();
    const shown = [...turns, reply];
    await fill(reply, turns, asking, () => asking.show([...shown]));
    const isDone = !reply.calls.length || reply.error || !asking.settings.runsTools;
    for (const call of isDone ? [] : reply.calls) call.result = runTool(call.name, call.arguments);
    asking.show([...shown]);
    if (isDone || reply.calls.some((call) => call.result === null)) return;
    turns = shown;
  }
}

async function fill(
  reply: AssistantTurn,
  turns: Turn[],
  { model, key, settings, signal }: Asking,
  show: () => void,
): Promise<void> {
  const began = performance.now();
  let first: number | null = null;
  let thoughtUntil = began;
  const stats = { firstTokenMs: null as number | null, reasoningMs: 0, totalMs: 0, usage: null };
  reply.stats = stats;
  show();
  try {
    const { messages, ...asked } = bodyOf(model, turns, settings);
    reply.body = asked;
    reply.system = settings.system;
    for await (const piece of streamChat({ ...asked, messages }, key, signal)) {
      const now = performance.now();
      if (piece.kind === "reasoning" || piece.kind === "content" || piece.kind === "call") {
        first ??= now;
        stats.firstTokenMs = first - began;
        if (piece.kind === "reasoning") thoughtUntil = now;
      }
      stats.reasoningMs = first === null ? 0 : Math.max(thoughtUntil - first, 0);
      stats.totalMs = now - began;
      take(reply, piece);
      show();
    }
  } catch (error) {
    if ((error as Error).name === "AbortError") reply.finish = "stopped";
    else reply.error = worded(error as Error);
  }
  stats.totalMs = performance.now() - began;
  show();
}

function take(reply: AssistantTurn, piece: Piece): void {
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
      reply.tokenIds.push(...piece.ids);
      break;
    case "event":
      reply.events.push(piece.line);
  }
}
