// The transcript: what was asked, thought, called and answered.
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import type { AssistantTurn, Call, Stats, Turn, UserTurn } from "./conversation";
import { copy } from "./copy";
import { Markdown } from "./markdown";
import { runTool } from "./tools";

export interface Deeds {
  edit: (index: number, text: string) => void;
  retry: (index: number) => void;
  sendResults: (index: number, calls: Call[]) => void;
  details: (turn: AssistantTurn) => void;
}

export function Transcript(props: { turns: Turn[]; isBusy: boolean; deeds: Deeds }) {
  const { turns, isBusy, deeds } = props;
  const last = turns.length - 1;
  const place = useRef<HTMLDivElement>(null);
  const isFollowed = useRef(true); // until the reader scrolls up
  useLayoutEffect(() => {
    if (isFollowed.current) place.current!.scrollTop = place.current!.scrollHeight;
  });
  const note = ({ currentTarget: view }: { currentTarget: HTMLElement }) => {
    isFollowed.current = view.scrollHeight - view.scrollTop - view.clientHeight < 60;
  };
  return (
    <div class="transcript" ref={place} onScroll={note} tabIndex={0} role="log" aria-label="Conversation" aria-busy={isBusy}>
      {turns.map((turn, index) =>
        turn.role === "user" ? (
          <Question key={index} turn={turn} isBusy={isBusy} edit={(text) => deeds.edit(index, text)} />
        ) : (
          <Answer
            key={index}
            turn={turn}
            isRunning={isBusy && index === last}
            isLast={index === last}
            isBusy={isBusy}
            index={index}
            deeds={deeds}
          />
        ),
      )}
    </div>
  );
}

function Question(props: { turn: UserTurn; isBusy: boolean; edit: (text: string) => void }) {
  const [draft, setDraft] = useState<string | null>(null);
  if (draft === null) {
    return (
      <article class="turn user" aria-label="You">
        <p class="said">{props.turn.text}</p>
        <div class="deeds">
          <button type="button" disabled={props.isBusy} onClick={() => setDraft(props.turn.text)}>
            Edit
          </button>
        </div>
      </article>
    );
  }
  const send = () => {
    setDraft(null);
    props.edit(draft);
  };
  return (
    <article class="turn user" aria-label="You">
      <textarea
        aria-label="Your message"
        rows={4}
        value={draft}
        onInput={(event) => setDraft(event.currentTarget.value)}
      />
      <div class="deeds">
        <button type="button" onClick={() => setDraft(null)}>Cancel</button>
        <button type="button" class="main" disabled={!draft.trim()} onClick={send}>Send</button>
      </div>
    </article>
  );
}

function Answer(props: {
  turn: AssistantTurn;
  index: number;
  isRunning: boolean;
  isLast: boolean;
  isBusy: boolean;
  deeds: Deeds;
}) {
  const { turn, index, isRunning, deeds } = props;
  const isEmpty = !turn.text && !turn.reasoning && !turn.calls.length;
  return (
    <article class="turn assistant" aria-label="Assistant">
      {turn.reasoning && <Reasoning turn={turn} isOpen={isRunning && !turn.text && !turn.calls.length} />}
      {isRunning && isEmpty && <p class="waiting">Waiting for the first token …</p>}
      {turn.text && (turn.body?.response_format ? <Structured text={turn.text} /> : <Markdown text={turn.text} />)}
      {turn.calls.length > 0 && (
        <Calls
          calls={turn.calls}
          isOpen={props.isLast && !props.isBusy}
          send={(calls) => deeds.sendResults(index, calls)}
        />
      )}
      {turn.error && <p class="error" role="alert">{turn.error}</p>}
      {turn.finish === "length" && <p class="note">The answer was cut off at the token limit.</p>}
      {turn.finish === "stopped" && <p class="note">Stopped.</p>}
      {!isRunning && (
        <div class="deeds">
          <Figures stats={turn.stats} />
          <button type="button" onClick={(event) => void copy(turn.text, event.currentTarget)}>Copy</button>
          <button type="button" disabled={props.isBusy} onClick={() => deeds.retry(index)}>Retry</button>
          {turn.body && (
            <button type="button" onClick={() => deeds.details(turn)}>Request &amp; raw</button>
          )}
        </div>
      )}
    </article>
  );
}

/** An answer by a schema: code, set in lines as soon as it is whole. */
function Structured({ text }: { text: string }) {
  return <pre tabIndex={0} class="structured"><code>{pretty(text)}</code></pre>;
}

function pretty(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function Reasoning({ turn, isOpen }: { turn: AssistantTurn; isOpen: boolean }) {
  const tokens = turn.stats?.usage?.completion_tokens_details?.reasoning_tokens;
  const seconds = ((turn.stats?.reasoningMs ?? 0) / 1000).toFixed(1);
  const title = isOpen ? "Thinking …" : `Thought for ${seconds} s${tokens ? `, ${tokens} tokens` : ""}`;
  return (
    <details class="reasoning" open={isOpen}>
      <summary>{title}</summary>
      <p>{turn.reasoning}</p>
    </details>
  );
}

function Calls(props: { calls: Call[]; isOpen: boolean; send: (calls: Call[]) => void }) {
  const [drafts, setDrafts] = useState<Call[] | null>(null);
  const calls = drafts ?? props.calls;
  const change = (at: number, part: Partial<Call>) =>
    setDrafts(calls.map((call, index) => (index === at ? { ...call, ...part } : call)));
  const send = () => {
    setDrafts(null);
    props.send(calls.map((call) => ({ ...call, result: call.result ?? "" })));
  };
  return (
    <div class="calls">
      {calls.map((call, at) => (
        <fieldset key={call.id} class="call">
          <legend>Calls {call.name}</legend>
          <label>
            Arguments
            <textarea
              rows={rowsOf(call.arguments)}
              readOnly={!props.isOpen}
              value={call.arguments}
              onInput={(event) => change(at, { arguments: event.currentTarget.value })}
            />
          </label>
          <label>
            Result
            <textarea
              rows={rowsOf(call.result ?? "")}
              readOnly={!props.isOpen}
              placeholder={props.isOpen ? "What your tool would give" : ""}
              value={call.result ?? ""}
              onInput={(event) => change(at, { result: event.currentTarget.value })}
            />
          </label>
          {props.isOpen && runTool(call.name, call.arguments) !== null && (
            <button type="button" onClick={() => change(at, { result: runTool(call.name, call.arguments) })}>
              Run in the page
            </button>
          )}
        </fieldset>
      ))}
      {props.isOpen && (
        <button type="button" class="main" onClick={send}>Send results</button>
      )}
    </div>
  );
}

/** As high as the text needs, so that a whole call is seen at once. */
const rowsOf = (text: string) => Math.min(8, text.split("\n").length + Math.floor(text.length / 70));

const waited = (ms: number) => (ms < 1000 ? `${ms.toFixed(0)} ms` : `${(ms / 1000).toFixed(1)} s`);

function Figures({ stats }: { stats: Stats | null }) {
  if (!stats?.usage || stats.firstTokenMs === null) return <span class="figures" />;
  const { prompt_tokens, completion_tokens, prompt_tokens_details } = stats.usage;
  const writing = Math.max(stats.totalMs - stats.firstTokenMs, 1) / 1000;
  const rate = completion_tokens > 1 ? `${((completion_tokens - 1) / writing).toFixed(1)} tokens/s` : "";
  const cached = prompt_tokens_details?.cached_tokens;
  const parts = [
    rate,
    `first after ${waited(stats.firstTokenMs)}`,
    `${prompt_tokens}${cached ? ` (${cached} cached)` : ""} + ${completion_tokens} tokens`,
  ];
  return <span class="figures">{parts.filter(Boolean).join(" · ")}</span>;
}
