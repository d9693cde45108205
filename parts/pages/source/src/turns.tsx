// The transcript: what was asked, thought, called and answered.
import { Component, type ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { endReasoning, type Rival, worded } from "./api";
import { Calls } from "./calls";
import { MAX_ROUNDS } from "./chat";
import { Code } from "./code";
import { Files } from "./composer";
import {
  type AssistantTurn,
  type Call,
  type Conversation,
  courses,
  isVoid,
  type Settings,
  type Turn,
  type UserTurn,
} from "./conversation";
import { CopyButton } from "./copy";
import { Failed } from "./failed";
import { Figures, waited } from "./figures";
import { Icon } from "./icons";
import { Later } from "./later";
import { Prose } from "./prose";
import { now } from "./store";
import { Waiting } from "./waiting";

const TOKENS = () => import("./tokens").then((module) => module.Tokens);

export interface Deeds {
  edit: (index: number, text: string) => void;
  retry: (index: number, settings?: Partial<Settings>) => void;
  sendResults: (index: number, calls: Call[]) => void;
  resume: (index: number) => void;
  continueWith: (index: number, at: number, rival: Rival) => void;
  details: (index: number) => void;
  remove: (index: number) => void;
  turnTo: (index: number, step: 1 | -1) => void;
}

/** `deeds` stay the same from one drawing to the next. */
export function Transcript(props: { chat: Conversation; isBusy: boolean; deeds: Deeds }) {
  const { chat, isBusy, deeds } = props;
  const { turns } = chat;
  const last = turns.length - 1;
  const place = useRef<HTMLDivElement>(null);
  const isFollowed = useRef(true); // until the reader scrolls up
  const [isAway, setAway] = useState(false);
  useLayoutEffect(() => {
    isFollowed.current = true; // what was asked is shown, wherever the reader was
  }, [turns.length]);
  useLayoutEffect(() => {
    if (isFollowed.current) place.current!.scrollTop = place.current!.scrollHeight;
  });
  const note = ({ currentTarget: view }: { currentTarget: HTMLElement }) => {
    const left = view.scrollHeight - view.scrollTop - view.clientHeight;
    isFollowed.current = left < 60;
    setAway(left > view.clientHeight / 2);
  };
  const toEnd = () => {
    isFollowed.current = true;
    place.current!.scrollTop = place.current!.scrollHeight;
  };
  return (
    <div class="reading">
      <div class="transcript" ref={place} onScroll={note} tabIndex={0} role="log" aria-label="Conversation" aria-busy={isBusy}>
        {turns.map((turn, index) => {
          const path = chat.branches.length ? pathOf(chat, index) : "";
          const isLast = index === last;
          return <TurnView key={index} turn={turn} index={index} path={path} isLast={isLast} isBusy={isBusy} deeds={deeds} />;
        })}
        <div class="end" />
      </div>
      {isAway && (
        <button type="button" class="jump" aria-label="Jump to the end" title="Jump to the end" onClick={toEnd}>
          <Icon name="down" />
        </button>
      )}
    </div>
  );
}

function pathOf(chat: Conversation, index: number): string {
  const { place, orders } = courses(chat, index);
  return orders.length > 1 ? `${place + 1}/${orders.length}` : "";
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
      return (
        <Question
          turn={turn}
          isBusy={isBusy}
          edit={(text) => deeds.edit(index, text)}
          remove={() => deeds.remove(index)}
          paths={paths}
        />
      );
    }
    const isRunning = isBusy && isLast;
    return <Answer turn={turn} isRunning={isRunning} isLast={isLast} isBusy={isBusy} index={index} deeds={deeds} paths={paths} />;
  }
}

function Paths(props: { path: string; isBusy: boolean; turnTo: (step: 1 | -1) => void }) {
  return (
    <span class="paths">
      <button type="button" aria-label="Version before" disabled={props.isBusy} onClick={() => props.turnTo(-1)}>
        ‹
      </button>
      {props.path}
      <button type="button" aria-label="Version after" disabled={props.isBusy} onClick={() => props.turnTo(1)}>
        ›
      </button>
    </span>
  );
}

function Question(props: {
  turn: UserTurn;
  isBusy: boolean;
  edit: (text: string) => void;
  remove: () => void;
  paths: ComponentChildren;
}) {
  const [draft, setDraft] = useState<string | null>(null);
  const field = useRef<HTMLTextAreaElement>(null);
  useEffect(() => field.current?.focus(), [draft === null]);
  if (draft === null) {
    return (
      <article class="turn user" aria-label="You">
        {props.turn.files && props.turn.files.length > 0 && <Files files={props.turn.files} />}
        {props.turn.text && <Said text={props.turn.text} />}
        <div class="deeds">
          {props.paths}
          <CopyButton class="deed" text={() => props.turn.text}>
            <Icon name="copy" />
          </CopyButton>
          <button
            type="button"
            class="deed"
            aria-label="Delete this question and its answer"
            title="Delete with its answer"
            disabled={props.isBusy}
            onClick={props.remove}
          >
            <Icon name="close" />
          </button>
          <button
            type="button"
            class="deed edit"
            aria-label="Edit"
            title="Edit"
            disabled={props.isBusy}
            onClick={() => setDraft(props.turn.text)}
          >
            <Icon name="edit" />
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
        <button type="button" onClick={() => setDraft(null)}>
          Cancel
        </button>
        <button type="button" class="main" disabled={!draft.trim()} onClick={send}>
          Send
        </button>
      </div>
    </article>
  );
}

const FOLDED = 2000; // characters of a question; more is folded

function Said({ text }: { text: string }) {
  const [isWhole, setWhole] = useState(false);
  if (text.length <= FOLDED)
    return (
      <p class="said" dir="auto">
        {text}
      </p>
    );
  return (
    <div class="said" dir="auto">
      {isWhole ? text : `${text.slice(0, FOLDED)} …`}
      <button type="button" onClick={() => setWhole(!isWhole)}>
        {isWhole ? "Fold" : `Show all ${text.length.toLocaleString("en")} characters`}
      </button>
    </div>
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
  const isThinking = isRunning && !turn.text && !turn.calls.length;
  const [hasTokens, setHasTokens] = useState(() => Boolean(turn.body?.return_token_logprobs)); // shown
  return (
    <article class="turn assistant" aria-label="Assistant">
      {turn.reasoning && <Reasoning turn={turn} isOpen={isThinking} />}
      {isThinking && turn.reasoning && turn.id && <AnswerNow key={turn.id} id={turn.id} />}
      {turn.text &&
        (turn.body?.response_format ? <Structured text={turn.text} /> : <Prose text={turn.text} isGrowing={isRunning} />)}
      {turn.calls.length > 0 && (
        <Calls
          calls={turn.calls}
          isOpen={props.isLast && !props.isBusy && turn.finish !== "rounds"}
          send={(calls) => deeds.sendResults(index, calls)}
        />
      )}
      {isRunning && <Waiting turn={turn} />}
      {turn.restarts.map((each, at) => (
        <p key={at} class="survived">
          Engine restarted after {each.after} tokens. The answer continued {waited(each.ms)} later.
        </p>
      ))}
      {turn.error && <Failed turn={turn} canRetry={props.isLast && !props.isBusy} retry={() => deeds.retry(index)} />}
      {!isRunning && turn.isCut && (
        <p class="error" role="alert">
          The connection was lost after {turn.tokenIds.length} tokens.
        </p>
      )}
      {!isRunning && !props.isLast && isVoid(turn) && <p class="note">The model is not told this question and its answer.</p>}
      {turn.finish === "rounds" && props.isLast && (
        <p class="note">
          Stopped after {MAX_ROUNDS} rounds of calls.{" "}
          <button type="button" disabled={props.isBusy} onClick={() => deeds.sendResults(index, turn.calls)}>
            Go on
          </button>
        </p>
      )}
      {turn.finish === "length" && <p class="note">The answer ended at the token limit.</p>}
      {turn.finish === "stopped" && <p class="note">Stopped.</p>}
      {!isRunning && hasTokens && turn.tokenIds.length > 0 && (
        <TokenView turn={turn} canContinue={!props.isBusy} index={index} deeds={deeds} />
      )}
      {!isRunning && (
        <div class="deeds">
          {props.paths}
          <Figures stats={turn.stats} />
          {props.isLast && canResume(turn) && (
            <button type="button" class={turn.isCut ? "main" : ""} disabled={props.isBusy} onClick={() => deeds.resume(index)}>
              Continue
            </button>
          )}
          <CopyButton class="deed" text={() => copied(turn)}>
            <Icon name="copy" />
          </CopyButton>
          <button
            type="button"
            class="deed"
            aria-label="Retry"
            title="Retry"
            disabled={props.isBusy}
            onClick={() => deeds.retry(index)}
          >
            <Icon name="retry" />
          </button>
          <RetryWith isBusy={props.isBusy} retry={(settings) => deeds.retry(index, settings)} />
          {turn.tokenIds.length > 0 && (
            <button type="button" class="deed" aria-pressed={hasTokens} onClick={() => setHasTokens(!hasTokens)}>
              <Icon name="tokens" /> Tokens
            </button>
          )}
          {turn.body && (
            <button type="button" class="deed" onClick={() => deeds.details(index)}>
              <Icon name="raw" /> Request &amp; raw
            </button>
          )}
        </div>
      )}
    </article>
  );
}

const OTHERWISE: Record<string, Partial<Settings>> = {
  "high effort": { effort: "high" },
  "low effort": { effort: "low" },
  "temperature 0": { temperature: "0" },
  "temperature 1.3": { temperature: "1.3" },
};

/** Ask once more with one setting changed, for this answer only. */
function RetryWith({ isBusy, retry }: { isBusy: boolean; retry: (settings: Partial<Settings>) => void }) {
  return (
    <select
      class="retry deed"
      aria-label="Retry with"
      title="Retry with …"
      disabled={isBusy}
      value=""
      onChange={({ currentTarget: menu }) => {
        const chosen = OTHERWISE[menu.value];
        menu.value = "";
        if (chosen) retry(chosen);
      }}
    >
      <option value="" hidden />
      {Object.keys(OTHERWISE).map((name) => (
        <option key={name}>{name}</option>
      ))}
    </select>
  );
}

const canResume = (turn: AssistantTurn) =>
  turn.tokenIds.length > 0 && !turn.calls.length && (turn.isCut || turn.finish === "stopped" || turn.finish === "length");

function TokenView({
  turn,
  index,
  canContinue,
  deeds,
}: {
  turn: AssistantTurn;
  index: number;
  canContinue: boolean;
  deeds: Deeds;
}) {
  if (!turn.tokens.length) {
    return (
      <p class="note">
        This answer has no token probabilities.{" "}
        <button type="button" disabled={!canContinue} onClick={() => deeds.retry(index, { probabilities: true })}>
          Run it again with them
        </button>
      </p>
    );
  }
  const continueWith = (at: number, rival: Rival) => deeds.continueWith(index, at, rival);
  return <Later load={TOKENS} props={{ tokens: turn.tokens, canContinue, continueWith }} />;
}

/** What the Copy button of an answer gives: its text, or its calls. */
const copied = (turn: AssistantTurn) => turn.text || turn.calls.map((call) => `${call.name}(${call.arguments})`).join("\n");

/** An answer by a schema: code, set in lines as soon as it is whole. */
function Structured({ text }: { text: string }) {
  return (
    <div class="structured">
      <Code text={pretty(text)} lang="json" isDone={pretty(text) !== text} />
    </div>
  );
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

/** Ends the reasoning of the answer that is written. */
function AnswerNow({ id }: { id: string }) {
  const [state, setState] = useState<"" | "asked" | Error>("");
  const ask = () => {
    setState("asked");
    endReasoning(id, now().apiKey).catch(setState);
  };
  return (
    <p>
      <button type="button" disabled={state === "asked"} title="End the reasoning" onClick={ask}>
        Answer now
      </button>
      {state instanceof Error && (
        <span class="note" role="alert">
          {" "}
          {worded(state)}
        </span>
      )}
    </p>
  );
}
