// The list of conversations, and what can be done with all of them.
import { useEffect, useRef, useState } from "preact/hooks";
import { Icon } from "./icons";
import {
  asMarkdown,
  begin,
  bringBack,
  change,
  exported,
  forgetDeleted,
  now,
  open,
  remove,
  type State,
  setDialog,
  take,
} from "./store";

const UNDO_MS = 10_000;

/** What the list shows of the conversations; the same object as long as that is the same. */
export interface List {
  chats: { id: string; title: string; day: string; isOpen: boolean; isRunning: boolean }[];
}

let last: { key: string; list: List } = { key: "", list: { chats: [] } };

export function listed({ chats, openId, running }: State): List {
  const today = new Date().setHours(0, 0, 0, 0);
  const shown = chats.map(({ id, title, touched }) => {
    return { id, title, day: dayOf(touched, today), isOpen: id === openId, isRunning: running.has(id) };
  });
  const key = JSON.stringify(shown);
  if (key !== last.key) last = { key, list: { chats: shown } };
  return last.list;
}

const DAY_MS = 86_400_000;
const DAYS: [string, number][] = [
  ["Today", 0],
  ["Yesterday", 1],
  ["Last 7 days", 7],
  ["Last 30 days", 30],
];

const dayOf = (touched: number, today: number) => DAYS.find(([, days]) => touched >= today - days * DAY_MS)?.[0] ?? "Older";

export function Chats({ list, leave }: { list: List; leave: () => void }) {
  const [wanted, setWanted] = useState("");
  const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
  const chats = words.length ? list.chats.filter((each) => hasAll(each.id, words)) : list.chats;
  const choose = (id: string) => {
    open(id);
    leave();
  };
  return (
    <nav class="chats" aria-label="Conversations">
      <div class="row">
        <button
          type="button"
          class="main"
          onClick={() => {
            begin();
            leave();
          }}
        >
          New chat
        </button>
        <Shut leave={leave} />
      </div>
      <input
        type="search"
        aria-label="Search conversations"
        placeholder="Search (Ctrl K)"
        value={wanted}
        onInput={(event) => setWanted(event.currentTarget.value)}
      />
      {words.length > 0 && !chats.length && <p class="note">No conversation has all these words.</p>}
      <div class="list">
        {[...Map.groupBy(chats, (each) => each.day)].map(([day, entries]) => (
          <section key={day} aria-label={day}>
            <h2>{day}</h2>
            <ul>
              {entries.map((each) => (
                <Entry key={each.id} of={each} choose={choose} />
              ))}
            </ul>
          </section>
        ))}
      </div>
      <Files />
    </nav>
  );
}

/** Closes what lies over a narrow page. */
export const Shut = ({ leave }: { leave: () => void }) => (
  <button type="button" class="narrow shut" aria-label="Close" onClick={leave}>
    <Icon name="close" />
  </button>
);

function Entry({ of, choose }: { of: List["chats"][number]; choose: (id: string) => void }) {
  const [isNamed, setNamed] = useState(false); // it is given another name
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.select(), [isNamed]);
  const { id, title } = of;
  const keep = (name: string) => {
    if (name.trim()) change(id, { title: name.trim() });
    setNamed(false);
  };
  if (isNamed)
    return (
      <li>
        <input
          ref={field}
          aria-label="Name of the conversation"
          defaultValue={title}
          onBlur={(event) => keep(event.currentTarget.value)}
          onKeyDown={({ key, currentTarget: input }) => {
            if (key === "Escape") input.value = title;
            if (key === "Escape" || key === "Enter") input.blur();
          }}
        />
      </li>
    );
  return (
    <li class={of.isOpen ? "open" : ""}>
      <button type="button" title={title} aria-current={of.isOpen ? "true" : undefined} onClick={() => choose(id)}>
        {of.isRunning ? "● " : ""}
        {title}
      </button>
      <button type="button" class="deed" aria-label={`Rename ${title}`} title="Rename" onClick={() => setNamed(true)}>
        <Icon name="edit" />
      </button>
      <button
        type="button"
        class="deed"
        aria-label={`Delete ${title}`}
        title="Delete"
        disabled={of.isRunning}
        onClick={() => remove([id])}
      >
        <Icon name="close" />
      </button>
    </li>
  );
}

/** Whether a conversation's title or turns have all the words. */
function hasAll(id: string, words: string[]): boolean {
  const chat = now().chats.find((each) => each.id === id);
  const text = chat ? [chat.title, ...chat.turns.map((turn) => turn.text)].join("\n").toLowerCase() : "";
  return words.every((word) => text.includes(word));
}

/** The way back, for some seconds. */
export function Undo({ deleted, isTurn }: { deleted: State["deleted"]; isTurn: boolean }) {
  useEffect(() => {
    const timer = setTimeout(forgetDeleted, UNDO_MS);
    return () => clearTimeout(timer);
  }, []);
  return (
    <p class="undo" role="status">
      Deleted {isTurn ? "a question with its answer" : deleted.length > 1 ? `${deleted.length} chats` : `“${deleted[0]!.title}”`}.{" "}
      <button type="button" onClick={bringBack}>
        Undo
      </button>
    </p>
  );
}

function Files() {
  const field = useRef<HTMLInputElement>(null);
  const [told, setTold] = useState("");
  const save = () => download(exported(), "application/json", "json");
  const saveText = () => download(asMarkdown(now().chats.find((each) => each.id === now().openId)!), "text/markdown", "md");
  const read = async (file: File | undefined) => {
    if (!file) return;
    try {
      setTold(`Imported ${take(await file.text())} conversations.`);
    } catch (error) {
      setTold((error as Error).message);
    }
  };
  return (
    <div class="files">
      <button type="button" onClick={save}>
        Export
      </button>
      <button type="button" title="This conversation as Markdown" onClick={saveText}>
        Markdown
      </button>
      <button type="button" onClick={() => field.current!.click()}>
        Import
      </button>
      <button type="button" onClick={() => remove(now().chats.map((each) => each.id))}>
        Delete all
      </button>
      <button type="button" title="Run a file of requests" onClick={() => setDialog({ kind: "batches" })}>
        Batches
      </button>
      <input
        ref={field}
        type="file"
        accept="application/json"
        aria-label="Conversations to import"
        hidden
        onChange={(event) => void read(event.currentTarget.files?.[0])}
      />
      {told && (
        <p class="note" role="status">
          {told}
        </p>
      )}
    </div>
  );
}

function download(text: string, type: string, ending: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = `harmonium-${new Date().toISOString().slice(0, 10)}.${ending}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
