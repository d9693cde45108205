// The exact request of an answer as code, where its time went, and prompt and answer in raw Harmony.
import { useEffect, useRef, useState } from "preact/hooks";
import { postJSON, worded } from "./api";
import { type AssistantTurn, type Body, requestOf, type Turn } from "./conversation";
import { CopyButton } from "./copy";
import { langChain, messages, responses } from "./families";
import { Icon } from "./icons";
import { curl, node, python } from "./snippets";
import { Times } from "./times";

const SNIPPETS = { curl, Python: python, Node: node, Responses: responses, Messages: messages, LangChain: langChain };
const TABS = ["curl", "Python", "Node", "Responses", "Messages", "LangChain", "Time", "Raw"] as const;
type Tab = (typeof TABS)[number];

export function Details(props: { turns: Turn[]; at: number; apiKey: string; close: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [tab, setTab] = useState<Tab>("curl");
  const turn = props.turns[props.at] as AssistantTurn;
  const body = requestOf(props.turns, props.at);
  useEffect(() => dialog.current!.showModal(), []);
  return (
    <dialog
      ref={dialog}
      class="details"
      aria-label="Request and raw stream"
      onClose={props.close}
      onClick={(event) => event.target === dialog.current && dialog.current!.close()}
    >
      <button type="button" class="close" aria-label="Close" onClick={() => dialog.current!.close()}>
        <Icon name="close" />
      </button>
      <div class="tabs" role="tablist" onKeyDown={(event) => setTab(beside(tab, event.key))}>
        {TABS.map((each) => (
          <button
            key={each}
            type="button"
            role="tab"
            id={`tab-${each}`}
            aria-selected={each === tab}
            aria-controls="tab-panel"
            tabIndex={each === tab ? 0 : -1}
            onClick={() => setTab(each)}
          >
            {each}
          </button>
        ))}
      </div>
      <div id="tab-panel" role="tabpanel" aria-labelledby={`tab-${tab}`}>
        {tab === "Raw" && <Raw turn={turn} body={body} apiKey={props.apiKey} />}
        {tab === "Time" && <Times turns={props.turns} at={props.at} />}
        {tab in SNIPPETS && <Code text={SNIPPETS[tab as keyof typeof SNIPPETS](body, Boolean(props.apiKey))} />}
      </div>
    </dialog>
  );
}

function beside(tab: Tab, key: string): Tab {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[key] ?? 0;
  return TABS[(TABS.indexOf(tab) + step + TABS.length) % TABS.length]!;
}

function Code({ text }: { text: string }) {
  return (
    <pre tabIndex={0}>
      <code>{text}</code>
      <CopyButton class="copy" text={() => text}>
        Copy
      </CopyButton>
    </pre>
  );
}

function Raw({ turn, body, apiKey }: { turn: AssistantTurn; body: Body; apiKey: string }) {
  const ids = turn.tokenIds ?? []; // an older version of this page kept none
  const stream = turn.events.length ? turn.events.join("\n") : "Not available after a reload, which keeps only the tokens.";
  return (
    <>
      <div class="raw">
        <Harmony title="Prompt in Harmony" ask={() => promptOf(body, apiKey)} of={turn} />
        <Harmony title="Answer in Harmony" ask={() => textOf(ids, apiKey)} of={turn} />
      </div>
      <details>
        <summary>Raw stream</summary>
        <pre tabIndex={0}>
          <code>{stream}</code>
        </pre>
      </details>
    </>
  );
}

interface Tokens {
  prompt: string;
  count: number;
}

function Harmony(props: { title: string; ask: () => Promise<Tokens>; of: AssistantTurn }) {
  const [text, setText] = useState("…");
  const [count, setCount] = useState<number | null>(null);
  useEffect(() => {
    props.ask().then(
      (found) => {
        setText(found.prompt);
        setCount(found.count);
      },
      (error: Error) => setText(worded(error)),
    );
  }, [props.of]);
  return (
    <section>
      <h3>
        {props.title}
        {count !== null && `, ${count} tokens`}
      </h3>
      <pre tabIndex={0}>
        <code>{marked(text)}</code>
      </pre>
    </section>
  );
}

/** Control tokens stand out from what they could be taken for: text. */
const marked = (text: string) =>
  text.split(/(<\|\w+\|>)/).map((part, index) => (index % 2 ? <b class="control">{part}</b> : part));

const promptOf = (body: Body, apiKey: string) => postJSON<Tokens>("v1/chat/completions/render", body, apiKey);

async function textOf(tokens: number[], apiKey: string): Promise<Tokens> {
  const { prompt } = await postJSON<{ prompt: string }>("detokenize", { tokens }, apiKey);
  return { prompt, count: tokens.length };
}
