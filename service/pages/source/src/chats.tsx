// The list of conversations, and what can be done with all of them.
import { useEffect, useRef, useState } from "preact/hooks";
import { begin, bringBack, exported, forgetDeleted, now, open, remove, type State, take } from "./store";

const UNDO_MS = 10_000;

/** What the list shows of the conversations; the same object as long as that is the same. */
export interface List {
  chats: { id: string; title: string; isOpen: boolean; isRunning: boolean }[];
  deleted: State["deleted"];
}

let last: { key: string; list: List } = { key: "", list: { chats: [], deleted: null } };

export function listed({ chats, openId, running, deleted }: State): List {
  const shown = chats.map(({ id, title }) => ({ id, title, isOpen: id === openId, isRunning: running.has(id) }));
  const key = JSON.stringify([shown, deleted?.id]);
  if (key !== last.key) last = { key, list: { chats: shown, deleted } };
  return last.list;
}

export function Chats({ list, leave }: { list: List; leave: () => void }) {
  const { chats, deleted } = list;
  const choose = (id: string) => {
    open(id);
    leave();
  };
  return (
    <nav class="chats" aria-label="Conversations">
      <button
        type="button"
        class="main"
        onClick={() => {
          begin(now().chats.find((each) => each.id === now().openId)!.settings);
          leave();
        }}
      >
        New chat
      </button>
      <ul>
        {chats.map((each) => (
          <li key={each.id} class={each.isOpen ? "open" : ""}>
            <button type="button" aria-current={each.isOpen ? "true" : undefined} onClick={() => choose(each.id)}>
              {each.isRunning ? "● " : ""}
              {each.title}
            </button>
            <button type="button" aria-label={`Delete ${each.title}`} disabled={each.isRunning} onClick={() => remove(each.id)}>
              ×
            </button>
          </li>
        ))}
      </ul>
      {deleted && <Undo key={deleted.id} title={deleted.title} />}
      <Files />
    </nav>
  );
}

function Undo({ title }: { title: string }) {
  useEffect(() => {
    const timer = setTimeout(forgetDeleted, UNDO_MS);
    return () => clearTimeout(timer);
  }, []);
  return (
    <p class="undo" role="status">
      Deleted “{title}”.{" "}
      <button type="button" onClick={bringBack}>
        Undo
      </button>
    </p>
  );
}

function Files() {
  const field = useRef<HTMLInputElement>(null);
  const [told, setTold] = useState("");
  const save = () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([exported()], { type: "application/json" }));
    link.download = `harmonium-${new Date().toISOString().slice(0, 10)}.json`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
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
      <button type="button" onClick={() => field.current!.click()}>
        Import
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
