// The exact request of an answer, as curl, Python and Node, and its raw Harmony beside the stream.
import { useEffect, useRef, useState } from "preact/hooks";
import { postJSON, worded } from "./api";
import type { AssistantTurn, Body } from "./conversation";
import { copy } from "./copy";
import { curl, node, python } from "./snippets";

const TABS = ["curl", "Python", "Node", "Raw"] as const;
type Tab = (typeof TABS)[number];

export function Details(props: { turn: AssistantTurn; apiKey: string; close: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [tab, setTab] = useState<Tab>("curl");
  const body = props.turn.body!;
  useEffect(() => dialog.current!.showModal(), []);
  return (
    <dialog ref={dialog} class="details" aria-label="Request and raw stream" onClose={props.close}>
      <div class="tabs" role="tablist">
        {TABS.map((each) => (
          <button
            key={each}
            type="button"
            role="tab"
            id={`tab-${each}`}
            aria-selected={each === tab}
            aria-controls="tab-panel"
            onClick={() => setTab(each)}
          >
            {each}
          </button>
        ))}
        <button type="button" class="close" aria-label="Close" onClick={() => dialog.current!.close()}>×</button>
      </div>
      <div id="tab-panel" role="tabpanel" aria-labelledby={`tab-${tab}`}>
        {tab === "Raw" ? (
          <Raw turn={props.turn} apiKey={props.apiKey} />
        ) : (
          <Code text={{ curl, Python: python, Node: node }[tab](body, Boolean(props.apiKey))} />
        )}
      </div>
    </dialog>
  );
}

function Code({ text }: { text: string }) {
  return (
    <pre tabIndex={0}>
      <code>{text}</code>
      <button type="button" class="copy" onClick={(event) => void copy(text, event.currentTarget)}>Copy</button>
    </pre>
  );
}

function Raw({ turn, apiKey }: { turn: AssistantTurn; apiKey: string }) {
  const [prompt, setPrompt] = useState("…");
  useEffect(() => {
    rendered(turn.body!, apiKey).then(setPrompt, (error: Error) => setPrompt(worded(error)));
  }, [turn]);
  const stream = turn.events.length ? turn.events.join("\n") : "Not kept: only the answer is, after a reload.";
  return (
    <div class="raw">
      <section>
        <h3>Prompt in Harmony</h3>
        <pre tabIndex={0}><code>{prompt}</code></pre>
      </section>
      <section>
        <h3>Stream as it came</h3>
        <pre tabIndex={0}><code>{stream}</code></pre>
      </section>
    </div>
  );
}

async function rendered(body: Body, apiKey: string): Promise<string> {
  const answer = await postJSON<{ prompt: string; count: number }>("v1/chat/completions/render", body, apiKey);
  return `${answer.prompt}\n\n— ${answer.count} tokens`;
}
