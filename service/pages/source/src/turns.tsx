// The transcript: what was asked, thought, called and answered.
import { Component, type ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { courses, type AssistantTurn, type Call, type Conversation, type Stats, type Turn, type UserTurn } from "./conversation";
import { copy } from "./copy";
import { Code } from "./code";
import { Prose } from "./prose";
import { runTool } from "./tools";

export interface Deeds {
  edit: (index: number, text: string) => void;
  retry: (index: number) => void;
  sendResults: (index: number, calls: Call[]) => void;
  details: (index: number) => void;
  turnTo: (index: number, step: 1 | -1) => void;
}

/** `deeds` stay the same from one drawing to the next. */
export function Transcript(props: { chat: Conversation; isBusy: boolean; deeds: Deeds }) {
  const { chat, isBusy, deeds } = props;
  const { turns } = chat;
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
      {turns.map((turn, index) => {
        const { place, orders } = courses(chat, index);
        const path = orders.length > 1 ? `${place + 1}/${orders.length}` : "";
        const isLast = index === last;
        return <TurnView key={index} turn={turn} index={index} path={path} isLast={isLast} isBusy={isBusy} deeds={deeds} />;
      })}
    </div>
  );
}

interface Shown {
  turn: Turn;
  index: number;
  path: string; // which of several courses begins here, as 2/3
  isLast: boolean;
  isBusy: boolean;
  deeds: Deeds;
}

/** One turn, drawn again only when something of it changes: a long conversation stays quick. */
class TurnView extends Component<Shown> {
  override shouldComponentUpdate(next: Shown): boolean {
    const { turn, path, isLast, isBusy } = this.props;
    return next.turn !== turn || next.path !== path || next.isLast !== isLast || next.isBusy !== isBusy;
  }

  override render({ turn, index, path, isLast, isBusy, deeds }: Shown) {
    const paths = path && <Paths path={path} isBusy={isBusy} turnTo={(step) => deeds.turnTo(index, step)} />;
    if (turn.role === "user") {
      return <Question turn={turn} isBusy={isBusy} edit={(text) => deeds.edit(index, text)} paths={paths} />;
    }
    const isRunning = isBusy && isLast;
    return <Answer turn={turn} isRunning={isRunning} isLast={isLast} isBusy={isBusy} index={index} deeds={deeds} paths={paths} />;
  }
}

function Paths(props: { path: string; isBusy: boolean; turnTo: (step: 1 | -1) => void }) {
  return (
    <span class="paths">
      <button type="button" aria-label="Version before" disabled={props.isBusy} onClick={() => props.turnTo(-1)}>‹</button>
      {props.path}
      <button type="button" aria-label="Version after" disabled={props.isBusy} onClick={() => props.turnTo(1)}>›</button>
    </span>
  );
}

function Question(props: { turn: UserTurn; isBusy: boolean; edit: (text: string) => void; paths: ComponentChildren }) {
  const [draft, setDraft] = useState<string | null>(null);
  const field = useRef<HTMLTextAreaElement>(null);
  useEffect(() => field.current?.focus(), [draft === null]);
  if (draft === null) {
    return (
      <article class="turn user" aria-label="You">
        <p class="said" dir="auto">{props.turn.text}</p>
        <div class="deeds">
          {props.paths}
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
        ref={field}
        onInput={(event) => setDraft(event.currentTarget.value)}
        onKeyDown={(event) => event.key === "Escape" && setDraft(null)}
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
  paths: ComponentChildren;
}) {
  const { turn, index, isRunning, deeds } = props;
  const isEmpty = !turn.text && !turn.reasoning && !turn.calls.length;
  return (
    <article class="turn assistant" aria-label="Assistant">
      {turn.reasoning && <Reasoning turn={turn} isOpen={isRunning && !turn.text && !turn.calls.length} />}
      {isRunning && isEmpty && <p class="waiting">Waiting for the first token …</p>}
      {turn.text && (turn.body?.response_format ? <Structured text={turn.text} /> : <Prose text={turn.text} isGrowing={isRunning} />)}
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
          {props.paths}
          <Figures stats={turn.stats} />
          <button type="button" onClick={(event) => void copy(copied(turn), event.currentTarget)}>Copy</button>
          <button type="button" disabled={props.isBusy} onClick={() => deeds.retry(index)}>Retry</button>
          {turn.body && (
            <button type="button" onClick={() => deeds.details(index)}>Request &amp; raw</button>
          )}
        </div>
      )}
    </article>
  );
}

/** What the Copy button of an answer gives: its text, or its calls. */
const copied = (turn: AssistantTurn) => turn.text || turn.calls.map((call) => `${call.name}(${call.arguments})`).join("\n");

/** An answer by a schema: code, set in lines as soon as it is whole. */
function Structured({ text }: { text: string }) {
  return <div class="structured"><Code text={pretty(text)} lang="json" isDone={pretty(text) !== text} /></div>;
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
