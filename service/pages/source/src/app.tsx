// The page: conversations, the one that is open, and its settings.
import { render } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { answer } from "./chat";
import {
  newConversation,
  titleOf,
  type AssistantTurn,
  type Call,
  type Conversation,
  type Settings,
  type Turn,
} from "./conversation";
import { Details } from "./details";
import { Header } from "./header";
import { applyTheme, keepConversations, keepKey, readConversations, readKey, readTheme } from "./kept";
import { CONNECTING, watch, type Server } from "./server";
import { SettingsPanel } from "./settings";
import { Transcript } from "./turns";

function App() {
  const [conversations, setConversations] = useState(readConversations);
  const [openId, setOpenId] = useState(() => conversations[0]!.id);
  const [apiKey, setApiKey] = useState(readKey);
  const [server, setServer] = useState(CONNECTING);
  const [shown, setShown] = useState<AssistantTurn | null>(null);
  const [drawer, setDrawer] = useState<"" | "chats" | "settings">("");
  const [running, setRunning] = useState<AbortController | null>(null);
  const open = conversations.find((each) => each.id === openId) ?? conversations[0]!;

  useEffect(() => watch(apiKey, setServer), [apiKey]);
  useEffect(() => {
    if (!running) keepConversations(conversations);
  }, [conversations, running]);

  const change = (id: string, part: Partial<Conversation>) =>
    setConversations((all) => all.map((each) => (each.id === id ? { ...each, ...part } : each)));

  const run = async (turns: Turn[]) => {
    if (!server.model) return;
    const { id, settings } = open;
    const stop = new AbortController();
    setRunning(stop);
    const show = paced((now: Turn[]) => change(id, { turns: now }));
    change(id, { turns });
    try {
      await answer(turns, { model: server.model.id, key: apiKey, settings, signal: stop.signal, show: show.later });
    } finally {
      show.now();
      setRunning(null);
    }
  };

  const send = (text: string) => {
    if (!open.turns.length) change(open.id, { title: titleOf(text) });
    void run([...open.turns, { role: "user", text }]);
  };
  const deeds = {
    edit: (index: number, text: string) => void run([...open.turns.slice(0, index), { role: "user", text }]),
    retry: (index: number) => void run(open.turns.slice(0, index)),
    sendResults: (index: number, calls: Call[]) => {
      const turn = open.turns[index] as AssistantTurn;
      void run([...open.turns.slice(0, index), { ...turn, calls }]);
    },
    details: setShown,
  };
  const toggle = (which: "chats" | "settings") => setDrawer((now) => (now === which ? "" : which));
  const begin = () => {
    const fresh = newConversation(open.settings);
    setConversations((all) => [fresh, ...all]);
    setOpenId(fresh.id);
    setDrawer("");
  };
  const remove = (id: string) => {
    const left = conversations.filter((each) => each.id !== id);
    const rest = left.length ? left : [newConversation()];
    setConversations(rest);
    if (id === open.id) setOpenId(rest[0]!.id);
  };

  return (
    <div class={`page ${drawer && `shows-${drawer}`}`}>
      <Header
        server={server}
        apiKey={apiKey}
        setKey={(key) => {
          keepKey(key);
          setApiKey(key);
        }}
        link={{ href: "docs", text: "API" }}
        before={<button type="button" class="narrow" onClick={() => toggle("chats")}>Chats</button>}
        after={<button type="button" class="narrow" onClick={() => toggle("settings")}>Settings</button>}
      />
      <nav class="chats" aria-label="Conversations">
        <button type="button" class="main" onClick={begin} disabled={Boolean(running)}>New chat</button>
        <ul>
          {conversations.map((each) => (
            <li key={each.id} class={each.id === open.id ? "open" : ""}>
              <button
                type="button"
                disabled={Boolean(running)}
                aria-current={each.id === open.id ? "true" : undefined}
                onClick={() => {
                  setOpenId(each.id);
                  setDrawer("");
                }}
              >
                {each.title}
              </button>
              <button
                type="button"
                aria-label={`Delete ${each.title}`}
                disabled={Boolean(running)}
                onClick={() => remove(each.id)}
              >
                ×
              </button>
            </li>
          ))}
        </ul>
      </nav>
      <main>
        {open.turns.length ? (
          <Transcript turns={open.turns} isBusy={Boolean(running)} deeds={deeds} />
        ) : (
          <Welcome server={server} ask={send} />
        )}
        <Composer
          isReady={Boolean(server.model)}
          isBusy={Boolean(running)}
          send={send}
          stop={() => running?.abort()}
        />
      </main>
      <aside class="panel">
        <SettingsPanel
          settings={open.settings}
          change={(part: Partial<Settings>) => change(open.id, { settings: { ...open.settings, ...part } })}
        />
      </aside>
      {shown && <Details turn={shown} apiKey={apiKey} close={() => setShown(null)} />}
    </div>
  );
}

const EXAMPLES = ["What is the capital of France?", "Plan a weekend in Lisbon.", "Write a haiku about the sea."];
const OF_NANO = ["What can you do?", "What is nano?", "How do I list the models?"]; // it knows this service only

function Welcome({ server, ask }: { server: Server; ask: (text: string) => void }) {
  const { model, needsKey } = server;
  return (
    <section class="welcome">
      <h2>Ask {model?.id ?? "the model"} something</h2>
      <p>{needsKey ? "First enter an API key at the top of the page." : "Everything stays between this browser and this server."}</p>
      <div class="examples">
        {(model?.id === "nano" ? OF_NANO : EXAMPLES).map((text) => (
          <button key={text} type="button" disabled={!model} onClick={() => ask(text)}>{text}</button>
        ))}
      </div>
    </section>
  );
}

function Composer(props: { isReady: boolean; isBusy: boolean; send: (text: string) => void; stop: () => void }) {
  const [draft, setDraft] = useState("");
  const field = useRef<HTMLTextAreaElement>(null);
  const canSend = props.isReady && !props.isBusy && draft.trim() !== "";
  useEffect(() => {
    if (!props.isBusy) field.current?.focus({ preventScroll: true });
  }, [props.isBusy, props.isReady]);
  const send = () => {
    if (!canSend) return;
    props.send(draft);
    setDraft("");
  };
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <textarea
        ref={field}
        rows={2}
        aria-label="Message"
        placeholder="Message (Enter sends, Shift-Enter breaks the line)"
        value={draft}
        onInput={(event) => setDraft(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
          event.preventDefault();
          send();
        }}
      />
      {props.isBusy ? (
        <button type="button" class="main" onClick={props.stop}>Stop</button>
      ) : (
        <button type="submit" class="main" disabled={!canSend}>Send</button>
      )}
    </form>
  );
}

/** Draw at most once a frame, however quickly tokens come. */
function paced(show: (turns: Turn[]) => void) {
  let latest: Turn[] | null = null;
  const now = () => {
    if (latest) show(latest.map((turn) => ({ ...turn })));
    latest = null;
  };
  return {
    later: (turns: Turn[]) => {
      if (!latest) requestAnimationFrame(now);
      latest = turns;
    },
    now,
  };
}

function Page() {
  useMemo(() => applyTheme(readTheme()), []);
  return <App />;
}

render(<Page />, document.getElementById("app")!);
