// Where the time of an answer went, its calls included: bars on one scale.
import type { AssistantTurn, Turn } from "./conversation";
import { counted, waited } from "./figures";

interface Span {
  name: string;
  from: number; // ms
  ms: number;
  kind: string;
}

/** The answers from a question on up to the one at `at`, one after another. */
export function spansOf(turns: Turn[], at: number): Span[] {
  const first = turns.slice(0, at).findLastIndex((turn) => turn.role === "user") + 1;
  const spans: Span[] = [];
  let now = 0;
  for (const turn of turns.slice(first, at + 1)) {
    if (turn.role !== "assistant" || !turn.stats) continue;
    const { firstTokenMs, reasoningMs, totalMs } = turn.stats;
    const waitedMs = firstTokenMs ?? totalMs;
    add(`Queue and prompt${prompted(turn)}`, waitedMs, "wait");
    add("Thinking", reasoningMs, "think");
    const gone = turn.restarts.filter((each) => each.after).reduce((sum, each) => sum + each.ms, 0);
    add("Engine restarted", gone, "gone");
    const calls = turn.calls.map((call) => call.name).join(", ");
    add(calls ? `Call of ${calls}` : "Answer", totalMs - waitedMs - reasoningMs - gone, "write");
  }
  return spans;

  function add(name: string, ms: number, kind: string) {
    if (ms <= 0) return;
    spans.push({ name, from: now, ms, kind });
    now += ms;
  }
}

function prompted({ stats }: AssistantTurn): string {
  const usage = stats?.usage;
  if (!usage) return "";
  const cached = usage.prompt_tokens_details?.cached_tokens;
  return `: ${counted(usage.prompt_tokens)} tokens${cached ? `, ${counted(cached)} of them cached` : ""}`;
}

export function Times({ turns, at }: { turns: Turn[]; at: number }) {
  const spans = spansOf(turns, at);
  const whole = spans.reduce((sum, each) => sum + each.ms, 0) || 1;
  const per = (ms: number) => `${((ms / whole) * 100).toFixed(2)}%`;
  return (
    <ol class="times">
      {spans.map((each, index) => (
        <li key={index}>
          <span>
            {each.name} <strong>{waited(each.ms)}</strong>
          </span>
          <svg class={each.kind} width="100%" height="10" aria-hidden="true">
            <rect x={per(each.from)} width={per(each.ms)} height="10" />
          </svg>
        </li>
      ))}
    </ol>
  );
}
