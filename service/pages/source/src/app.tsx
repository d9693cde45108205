// The page: the conversation that is open, beside the others and its settings.
import { render } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { answer } from "./chat";
import { Chats } from "./chats";
import { Composer } from "./composer";
import { branch, titleOf, turnTo, type AssistantTurn, type Call, type Conversation, type Settings, type Turn } from "./conversation";
import { Details } from "./details";
import { Header } from "./header";
import { applyTheme, keepKey, readKey, readTheme } from "./kept";
import { CONNECTING, watch, type Server } from "./server";
import { SettingsPanel } from "./settings";
import { change, flushAll, load, now, setRunning, useStore } from "./store";
import { Transcript, type Deeds } from "./turns";

const runs = new Map<string, AbortController>();

interface Asked {
  model: string;
  key: string;
}

/** Answer the turns of a conversation; those that they replace stay as another course. */
async function run(chat: Conversation, turns: Turn[], at: number, { model, key }: Asked): Promise<void> {
  if (!model || runs.has(chat.id)) return;
  const stop = new AbortController();
  runs.set(chat.id, stop);
  change(chat.id, { ...branch(chat, at), turns });
  setRunning(chat.id, true);
  const show = paced((grown) => change(chat.id, { turns: grown }));
  try {
    await answer(turns, { model, key, settings: chat.settings, signal: stop.signal, show: show.later });
  } finally {
    show.now();
    runs.delete(chat.id);
    setRunning(chat.id, false);
  }
}

function App() {
  const state = useStore();
  const [apiKey, setApiKey] = useState(readKey);
  const [server, setServer] = useState(CONNECTING);
  const [details, setDetails] = useState<number | null>(null);
  const [drawer, setDrawer] = useState<"" | "chats" | "settings">("");
  const open = state.chats.find((each) => each.id === state.openId) ?? state.chats[0]!;
  const isBusy = state.running.has(open.id);

  useEffect(() => watch(apiKey, setServer), [apiKey]);
  useEffect(() => {
    document.title = open.turns.length ? `${open.title} · Harmonium` : "Harmonium";
  }, [open.title, open.turns.length === 0]);

  const asked = { model: server.model?.id ?? "", key: apiKey };
  const send = (text: string) => {
    if (!open.turns.length) change(open.id, { title: titleOf(text) });
    void run(open, [...open.turns, { role: "user", text }], open.turns.length, asked);
  };
  const deeds = useDeeds(asked, setDetails);
  const toggle = (which: "chats" | "settings") => setDrawer((shown) => (shown === which ? "" : which));

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
      <Chats state={state} leave={() => setDrawer("")} />
      <main>
        {state.problem && <p class="error banner" role="alert">{state.problem}</p>}
        {open.turns.length ? (
          <Transcript key={open.id} chat={open} isBusy={isBusy} deeds={deeds} />
        ) : (
          <Welcome server={server} ask={send} />
        )}
        <Composer
          draft={open.draft}
          setDraft={(draft) => change(open.id, { draft })}
          isReady={Boolean(server.model) && state.isLoaded}
          isBusy={isBusy}
          send={send}
          stop={() => runs.get(open.id)?.abort()}
        />
      </main>
      <aside class="panel">
        <SettingsPanel
          settings={open.settings}
          change={(part: Partial<Settings>) => change(open.id, { settings: { ...open.settings, ...part } })}
        />
      </aside>
      {details !== null && open.turns[details]?.role === "assistant" && (
        <Details turns={open.turns} at={details} apiKey={apiKey} close={() => setDetails(null)} />
      )}
    </div>
  );
}

/** What can be done to a turn of the open conversation; the same functions at every drawing. */
function useDeeds(asked: Asked, details: (index: number) => void): Deeds {
  const latest = useMemo(() => ({ asked }), []);
  latest.asked = asked;
  return useMemo(() => {
    const chat = () => now().chats.find((each) => each.id === now().openId)!;
    const again = (at: number, turns: Turn[]) => void run(chat(), turns, at, latest.asked);
    return {
      edit: (index, text) => again(index, [...chat().turns.slice(0, index), { role: "user", text }]),
      retry: (index) => again(index, chat().turns.slice(0, index)),
      sendResults: (index: number, calls: Call[]) => {
        const { turns } = chat();
        const turn = turns[index] as AssistantTurn;
        again(turns.length, [...turns.slice(0, index), { ...turn, calls }]);
      },
      turnTo: (index, step) => change(chat().id, turnTo(chat(), index, step)),
      details,
    };
  }, []);
}

const EXAMPLES = ["What is the capital of France?", "Plan a weekend in Lisbon.", "Write a haiku about the sea."];
const OF_NANO = ["What can you do?", "What is nano?", "How do I list the models?"]; // it knows this service only

function Welcome({ server, ask }: { server: Server; ask: (text: string) => void }) {
  const { model, needsKey } = server;
  const isNano = model?.id === "nano";
  return (
    <section class="welcome">
      <h2>Ask {model?.id ?? "the model"} something</h2>
      {isNano && (
        <p>
          nano is a 6-million-parameter test model: it shows the API, not intelligence. <code>harmonium profiles</code> says
          how this machine gets a real one.
        </p>
      )}
      <p>{needsKey ? "First enter an API key at the top of the page." : "Everything stays between this browser and this server."}</p>
      <div class="examples">
        {(isNano ? OF_NANO : EXAMPLES).map((text) => (
          <button key={text} type="button" disabled={!model} onClick={() => ask(text)}>{text}</button>
        ))}
      </div>
    </section>
  );
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

applyTheme(readTheme());
addEventListener("pagehide", flushAll);
document.addEventListener("visibilitychange", () => document.hidden && flushAll());
render(<App />, document.getElementById("app")!);
void load();
