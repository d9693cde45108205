// The list of conversations, and what can be done with all of them.
import { useEffect, useRef, useState } from "preact/hooks";
import { begin, bringBack, exported, forgetDeleted, open, remove, take, type State } from "./store";

const UNDO_MS = 10_000;

export function Chats({ state, leave }: { state: State; leave: () => void }) {
  const { chats, openId, running } = state;
  const shown = chats.find((each) => each.id === openId);
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
          begin(shown!.settings);
          leave();
        }}
      >
        New chat
      </button>
      <ul>
        {chats.map((each) => (
          <li key={each.id} class={each.id === openId ? "open" : ""}>
            <button type="button" aria-current={each.id === openId ? "true" : undefined} onClick={() => choose(each.id)}>
              {running.has(each.id) ? "● " : ""}{each.title}
            </button>
            <button type="button" aria-label={`Delete ${each.title}`} disabled={running.has(each.id)} onClick={() => remove(each.id)}>
              ×
            </button>
          </li>
        ))}
      </ul>
      {state.deleted && <Undo key={state.deleted.id} title={state.deleted.title} />}
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
      Deleted “{title}”. <button type="button" onClick={bringBack}>Undo</button>
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
      <button type="button" onClick={save}>Export</button>
      <button type="button" onClick={() => field.current!.click()}>Import</button>
      <input
        ref={field}
        type="file"
        accept="application/json"
        aria-label="Conversations to import"
        hidden
        onChange={(event) => void read(event.currentTarget.files?.[0])}
      />
      {told && <p class="note" role="status">{told}</p>}
    </div>
  );
}
