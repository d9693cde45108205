// One question, two settings, side by side; either answer can be kept in the conversation.
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, getJSON, type Model } from "./api";
import { answer } from "./chat";
import {
  type AssistantTurn,
  branch,
  type Conversation,
  newAnswer,
  type Settings,
  type Turn,
  titleOf,
  type UserTurn,
} from "./conversation";
import { Figures } from "./figures";
import { Icon } from "./icons";
import { Prose } from "./prose";
import { Check, Sampling } from "./settings";
import { change, now, useStore } from "./store";

interface Side {
  settings: Settings;
  turns: Turn[]; // after the question
  origin: string; // of another server; empty: this one
  key: string; // for that server
}

export function Compare({ chat, close }: { chat: Conversation; close: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const stop = useRef<AbortController | null>(null);
  const [text, setText] = useState(chat.draft);
  const [asked, setAsked] = useState<UserTurn | null>(null);
  const [isBusy, setBusy] = useState(false);
  const [sides, setSides] = useState<[Side, Side]>([
    { settings: { ...chat.settings, effort: "low" }, turns: [], origin: "", key: "" },
    { settings: { ...chat.settings, effort: "high" }, turns: [], origin: "", key: "" },
  ]);
  const server = useStore((all) => all.server);
  useEffect(() => {
    dialog.current!.showModal();
    return () => stop.current?.abort();
  }, []);
  const origins = server.metadata?.compare_origins ?? [];
  const put = (at: number, part: Partial<Side>) =>
    setSides((both) => both.map((side, index) => (index === at ? { ...side, ...part } : side)) as [Side, Side]);
  const ask = async () => {
    if (!server.model || !text.trim()) return;
    const { signal } = (stop.current = new AbortController());
    const question: UserTurn = { role: "user", text };
    const before = [...chat.turns, question];
    const { apiKey: key } = now();
    const model = server.model.id;
    setAsked(question);
    setBusy(true);
    await Promise.all(
      sides.map(async ({ settings, origin, key: own }, at) => {
        const show = (turns: Turn[]) => put(at, { turns: turns.slice(before.length).map((turn) => ({ ...turn })) });
        if (!origin) return answer(before, { model, key, settings, signal, show });
        const found = await modelOf(origin, own);
        if (found instanceof Error) return show([...before, { ...newAnswer(), error: `${origin}: ${found.message}` }]);
        return answer(before, { model: found, key: own, settings, signal, show, server: `${origin}/` });
      }),
    );
    setBusy(false);
  };
  const keep = (at: number) => {
    const { turns, title } = chat;
    const other: Conversation = { ...chat, turns: [...turns, asked!, ...sides[1 - at]!.turns] };
    // The other answer stays as a course beside the one that is kept.
    change(chat.id, {
      ...branch(other, turns.length + 1),
      turns: [...turns, asked!, ...sides[at]!.turns],
      title: turns.length ? title : titleOf(asked!.text),
      draft: "",
    });
    close();
  };
  return (
    <dialog
      ref={dialog}
      class="details compare"
      aria-label="Compare two answers"
      onClose={close}
      onClick={(event) => event.target === dialog.current && dialog.current!.close()}
    >
      <button type="button" class="close" aria-label="Close" onClick={() => dialog.current!.close()}>
        <Icon name="close" />
      </button>
      <h2>Compare two answers</h2>
      <form
        class="row"
        onSubmit={(event) => {
          event.preventDefault();
          void ask();
        }}
      >
        <textarea
          rows={2}
          dir="auto"
          aria-label="Question"
          placeholder="One question for both"
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
        />
        {isBusy ? (
          <button key="stop" type="button" class="main" onClick={() => stop.current?.abort()}>
            Stop
          </button>
        ) : (
          <button key="ask" type="submit" class="main" disabled={!server.model || !text.trim()}>
            Ask both
          </button>
        )}
      </form>
      <div class="sides">
        {sides.map((side, at) => (
          <section key={at} aria-label={at ? "Right" : "Left"}>
            {origins.length > 0 && <Where side={side} origins={origins} put={(part) => put(at, part)} />}
            <Sampling settings={side.settings} change={(part) => put(at, { settings: { ...side.settings, ...part } })} />
            <Check isOn={side.settings.usesSchema} set={(usesSchema) => put(at, { settings: { ...side.settings, usesSchema } })}>
              Make the answer follow the panel's JSON schema
            </Check>
            {side.turns.map((turn, index) => turn.role === "assistant" && <Shown key={index} turn={turn} isGrowing={isBusy} />)}
            {!isBusy && side.turns.length > 0 && (
              <button type="button" onClick={() => keep(at)}>
                Keep this answer
              </button>
            )}
          </section>
        ))}
      </div>
    </dialog>
  );
}

/** Which server answers, and the key that it wants: this page's own key is not sent to another. */
function Where(props: { side: Side; origins: string[]; put: (part: Partial<Side>) => void }) {
  const { side, origins, put } = props;
  return (
    <div class="pair">
      <label>
        Server
        <select value={side.origin} onChange={(event) => put({ origin: event.currentTarget.value })}>
          <option value="">this one</option>
          {origins.map((each) => (
            <option key={each}>{each}</option>
          ))}
        </select>
      </label>
      {side.origin && (
        <label>
          Its key
          <input
            type="password"
            autocomplete="off"
            placeholder="none"
            value={side.key}
            onInput={(event) => put({ key: event.currentTarget.value.trim() })}
          />
        </label>
      )}
    </div>
  );
}

/** The model that another server serves, or why that is not known. */
async function modelOf(origin: string, key: string): Promise<string | Error> {
  try {
    const { data } = await getJSON<{ data: Model[] }>(`${origin}/v1/models`, key);
    return data[0]?.id ?? new Error("it serves nothing.");
  } catch (error) {
    const isSilent = error instanceof ApiError && error.status === null; // browsers tell no more
    return isSilent ? new Error("it cannot be reached, or its NIM_CORS_ALLOW_ORIGINS lacks this page.") : (error as Error);
  }
}

function Shown({ turn, isGrowing }: { turn: AssistantTurn; isGrowing: boolean }) {
  return (
    <article aria-label="Assistant">
      {turn.reasoning && (
        <details class="reasoning">
          <summary>Thoughts</summary>
          <p>{turn.reasoning}</p>
        </details>
      )}
      {turn.calls.map((call) => (
        <p key={call.id} class="note">
          {call.name}({call.arguments}) → {call.result}
        </p>
      ))}
      {turn.text && <Prose text={turn.text} isGrowing={isGrowing} />}
      {turn.error && (
        <p class="error" role="alert">
          {turn.error}
        </p>
      )}
      <Figures stats={turn.stats} />
    </article>
  );
}
