// Where a message is written. Each conversation has its own draft, files and queue.
import { useEffect, useRef, useState } from "preact/hooks";
import { attachFiles, attachPaste, detach, LONG_PASTE } from "./attach";
import { type Attached, type Conversation, contextUsed } from "./conversation";
import { CopyButton } from "./copy";
import { counted } from "./figures";
import { Icon } from "./icons";
import { send, stop, unqueue } from "./run";
import { linkOf } from "./share";
import { begin, change, now, setDialog, useStore } from "./store";

// A phone has no room for the keys, and other ones.
const HINT = matchMedia("(min-width: 901px)").matches ? "Message (Enter sends, Shift-Enter breaks the line)" : "Message";

export function Composer({ chat, isBusy }: { chat: Conversation; isBusy: boolean }) {
  const server = useStore((all) => all.server);
  const isLoaded = useStore((all) => all.isLoaded);
  const { id, draft, attached, queued } = chat;
  const field = useRef<HTMLTextAreaElement>(null);
  const [problem, setProblem] = useState("");
  const isReady = Boolean(server.model) && isLoaded;
  const [isAsked, setAsked] = useState(false); // before the page was ready: it is sent then
  const hasText = draft.trim() !== "" || attached.length > 0;
  const limit = server.model?.max_model_len ?? Number.POSITIVE_INFINITY;
  const over = contextUsed(chat, false) - limit;
  const canSend = isReady && hasText && over <= 0;
  useEffect(() => {
    if (!isBusy) field.current?.focus({ preventScroll: true });
  }, [isBusy, isReady, id]);
  const submit = () => {
    setAsked(!isReady && hasText);
    if (!canSend) return;
    change(id, { draft: "", attached: [] });
    setProblem("");
    void send(id, { role: "user", text: draft, files: attached });
  };
  useEffect(() => {
    if (isAsked && canSend) submit();
  }, [isAsked, canSend]);
  const [isReading, setReading] = useState(false);
  const take = async (files: Iterable<File>) => {
    setReading(true);
    setProblem(await attachFiles(id, files));
    setReading(false);
  };
  const paste = (event: ClipboardEvent) => {
    const text = event.clipboardData?.getData("text/plain") ?? "";
    const files = [...(event.clipboardData?.files ?? [])];
    if (!files.length && text.length < LONG_PASTE) return;
    event.preventDefault();
    if (files.length) void take(files);
    else attachPaste(id, text);
  };
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        submit();
      }}
      onDragOver={(event) => event.preventDefault()}
      onDrop={(event) => {
        event.preventDefault();
        void take(event.dataTransfer?.files ?? []);
      }}
    >
      {problem && (
        <p class="error" role="alert">
          {problem}
        </p>
      )}
      {isReading && (
        <p class="note" role="status">
          Reading the file …
        </p>
      )}
      {queued.length > 0 && (
        <ul class="chips" aria-label="Waiting">
          {queued.map((each, at) => (
            <li key={at}>
              Next: {each.text.slice(0, 60) || each.files?.[0]?.name}
              <button type="button" aria-label="Take back" onClick={() => unqueue(id, at)}>
                <Icon name="close" />
              </button>
            </li>
          ))}
        </ul>
      )}
      {attached.length > 0 && <Files files={attached} limit={limit} remove={(at) => detach(id, at)} />}
      {over > 0 && <TooLong chat={chat} over={over} />}
      <div class="row">
        <Attach take={take} />
        <textarea
          ref={field}
          rows={1}
          dir="auto"
          aria-label="Message"
          placeholder={isBusy ? "Your next question (sent when this answer ends)" : HINT}
          value={draft}
          onPaste={paste}
          onInput={(event) => change(id, { draft: event.currentTarget.value })}
          onKeyDown={(event) => {
            if (event.key === "Escape" && isBusy) stop(id);
            if (event.key === "ArrowUp" && !draft && !isBusy) editLast(event);
            if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
            event.preventDefault();
            submit();
          }}
        />
        {isBusy ? (
          <button key="stop" type="button" class="main" aria-label="Stop" title="Stop (Escape)" onClick={() => stop(id)}>
            <Icon name="stop" />
          </button>
        ) : (
          <button key="send" type="submit" class="main" aria-label="Send" title="Send (Enter)" disabled={!canSend}>
            <Icon name="send" />
          </button>
        )}
      </div>
      <div class="row under">
        <Gauge chat={chat} limit={server.model?.max_model_len} />
        <CopyButton class="quiet" label="Share a link to this question and its settings" text={() => linkOf(sharedOf(chat))}>
          Share
        </CopyButton>
        <button type="button" class="quiet" disabled={!isReady} onClick={() => setDialog({ kind: "matrix" })}>
          Table
        </button>
        <button type="button" class="quiet" disabled={!isReady} onClick={() => setDialog({ kind: "compare" })}>
          Compare
        </button>
      </div>
    </form>
  );
}

/** Open the last question for editing. */
function editLast(event: KeyboardEvent): void {
  const button = [...document.querySelectorAll<HTMLButtonElement>(".turn.user .edit")].at(-1);
  if (!button) return;
  event.preventDefault();
  button.click();
}

function Attach({ take }: { take: (files: Iterable<File>) => Promise<void> }) {
  const field = useRef<HTMLInputElement>(null);
  return (
    <>
      <button type="button" aria-label="Attach files" title="Attach files" onClick={() => field.current!.click()}>
        <Icon name="attach" />
      </button>
      <input
        ref={field}
        type="file"
        multiple
        hidden
        aria-label="Files to attach"
        onChange={(event) => {
          const files = [...(event.currentTarget.files ?? [])]; // the list empties with the field
          event.currentTarget.value = "";
          void take(files);
        }}
      />
    </>
  );
}

/** Files as chips; without `remove` they belong to a message that was sent. */
export function Files(props: { files: Attached[]; limit?: number; remove?: (at: number) => void }) {
  const { files, limit = Number.POSITIVE_INFINITY, remove } = props;
  return (
    <ul class="chips" aria-label="Files">
      {files.map((file, at) => (
        <li key={at}>
          {file.name}
          {file.tokens !== null && <span class="note">{counted(file.tokens)} tokens</span>}
          {file.tokens !== null && file.tokens > limit && <span class="wrong">{counted(file.tokens - limit)} too many</span>}
          {remove && (
            <button type="button" aria-label={`Remove ${file.name}`} onClick={() => remove(at)}>
              <Icon name="close" />
            </button>
          )}
        </li>
      ))}
    </ul>
  );
}

/** What is being written, or else was asked last. */
function sharedOf({ draft, turns, settings }: Conversation) {
  return { text: draft || (turns.findLast((turn) => turn.role === "user")?.text ?? ""), settings };
}

/** More than the model can read: what can be left out. */
function TooLong({ chat, over }: { chat: Conversation; over: number }) {
  const { id, draft, attached } = chat;
  const largest = attached.reduce((most, file, at) => ((file.tokens ?? 0) > (attached[most]?.tokens ?? 0) ? at : most), 0);
  const anew = () => {
    change(id, { draft: "", attached: [] });
    begin();
    change(now().openId, { draft, attached });
  };
  return (
    <div class="error deeds">
      <span role="alert">{counted(over)} tokens too many for this model.</span>
      {attached[largest] && (
        <button type="button" onClick={() => detach(id, largest)}>
          Remove {attached[largest].name}
        </button>
      )}
      {chat.turns.length > 0 && (
        <button type="button" onClick={anew}>
          Ask in a new chat
        </button>
      )}
    </div>
  );
}

/** How much of the context the conversation takes, with the draft. */
function Gauge({ chat, limit }: { chat: Conversation; limit: number | undefined }) {
  if (!limit) return <span />;
  const used = contextUsed(chat);
  if (!used) return <span />;
  const share = Math.min(used / limit, 1);
  return (
    <span class={`gauge ${share > 0.9 ? "full" : ""}`}>
      <meter min={0} max={1} high={0.9} value={share} aria-label="Context in use" />
      {counted(used)} of {counted(limit)} tokens
    </span>
  );
}
