// The page: the conversation that is open, beside the others and its settings.
import { render } from "preact";
import { useEffect, useMemo } from "preact/hooks";
import { Chats, listed, Shut, Undo } from "./chats";
import { Composer } from "./composer";
import { type Conversation, turnTo } from "./conversation";
import { Header } from "./header";
import { Icon } from "./icons";
import { applyTheme, readTheme } from "./kept";
import { Later } from "./later";
import { continueWith, edit, resume, retry, sendResults } from "./run";
import { watch } from "./server";
import { SettingsPanel } from "./settings";
import { onShortcut } from "./shortcuts";
import { still } from "./still";
import { change, choose, flushAll, load, now, removeTurn, setDialog, setKey, setServer, toggle, useStore } from "./store";
import { type Deeds, Transcript } from "./turns";
import { Welcome } from "./welcome";

const DETAILS = () => import("./details").then((module) => module.Details);
const KEYS = () => import("./keys").then((module) => module.Keys);
const BATCHES = () => import("./batches").then((module) => module.Batches);
const MATRIX = () => import("./matrix").then((module) => module.Matrix);
const COMPARE = () => import("./compare").then((module) => module.Compare);

const StillHeader = still(Header);
const StillPanel = still(SettingsPanel);
const StillChats = still(Chats);
const NARROW = {
  chats: (
    <button type="button" class="narrow for-chats" onClick={() => toggle("chats")}>
      <Icon name="chats" /> <span class="word">Chats</span>
    </button>
  ),
  settings: (
    <button type="button" class="narrow for-settings" onClick={() => toggle("settings")}>
      <Icon name="settings" /> <span class="word">Settings</span>
    </button>
  ),
};
const API = { href: "docs", text: "API" };
const leave = () => toggle("");

function App() {
  const state = useStore((all) => all);
  const { server, apiKey, dialog, deleted } = state;
  const isDeleted = (each: Conversation) => each.id === deleted[0]?.id;
  const open = state.chats.find((each) => each.id === state.openId) ?? state.chats[0]!;
  const isBusy = state.running.has(open.id);
  const hasTurns = open.turns.length > 0;
  useEffect(() => watch(apiKey, setServer), [apiKey]);
  useEffect(() => {
    document.title = hasTurns ? `${open.title} · Harmonium` : "Harmonium";
  }, [open.title, hasTurns]);
  useEffect(() => {
    // There is something to read without the server. The page works where this is not allowed, too.
    if (hasTurns) void navigator.serviceWorker?.register("assets/offline.js", { scope: "./" }).catch(() => {});
  }, [hasTurns]);
  const deeds = useDeeds();
  const close = () => setDialog(null);
  return (
    <div class={`page ${state.drawer && `shows-${state.drawer}`}`}>
      <StillHeader server={server} apiKey={apiKey} setKey={setKey} link={API} before={NARROW.chats} after={NARROW.settings} />
      <StillChats list={listed(state)} leave={leave} />
      <main>
        {state.problem && (
          <p class="error banner" role="alert">
            {state.problem}
          </p>
        )}
        {hasTurns ? <Transcript key={open.id} chat={open} isBusy={isBusy} deeds={deeds} /> : <Welcome id={open.id} />}
        {deleted[0] && (
          <Undo key={`${deleted[0].id} ${deleted[0].turns.length}`} deleted={deleted} isTurn={state.chats.some(isDeleted)} />
        )}
        <Composer chat={open} isBusy={isBusy} />
      </main>
      <aside class="panel" aria-label="Settings">
        <Shut leave={leave} />
        <StillPanel settings={open.settings} change={choose} />
      </aside>
      {dialog?.kind === "request" && open.turns[dialog.turn]?.role === "assistant" && (
        <Later load={DETAILS} props={{ turns: open.turns, at: dialog.turn, apiKey, close }} />
      )}
      {dialog?.kind === "keys" && <Later load={KEYS} props={{ close }} />}
      {dialog?.kind === "matrix" && <Later load={MATRIX} props={{ settings: open.settings, close }} />}
      {dialog?.kind === "batches" && <Later load={BATCHES} props={{ apiKey, close }} />}
      {dialog?.kind === "compare" && <Later load={COMPARE} props={{ chat: open, close }} />}
    </div>
  );
}

/** What can be done to a turn of the open conversation; the same functions at every drawing. */
function useDeeds(): Deeds {
  return useMemo(() => {
    const id = () => now().openId;
    return {
      edit: (index, text) => edit(id(), index, text),
      retry: (index, settings) => void retry(id(), index, settings),
      resume: (index) => resume(id(), index),
      continueWith: (index, at, rival) => continueWith(id(), index, at, rival),
      sendResults: (index, calls) => sendResults(id(), index, calls),
      turnTo: (index, step) => {
        const chat = now().chats.find((each) => each.id === id())!;
        change(chat.id, turnTo(chat, index, step));
      },
      remove: (index) => removeTurn(id(), index),
      details: (index) => setDialog({ kind: "request", turn: index }),
    };
  }, []);
}

applyTheme(readTheme());
addEventListener("keydown", onShortcut);
addEventListener("pagehide", flushAll);
document.addEventListener("visibilitychange", () => document.hidden && flushAll());
render(<App />, document.getElementById("app")!);
void load();
