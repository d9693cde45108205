// A table of questions and settings: every answer, and whether it has what was expected.
import { useEffect, useRef, useState } from "preact/hooks";
import { answer } from "./chat";
import { type AssistantTurn, DEFAULTS, type Settings, type Turn } from "./conversation";
import { Icon } from "./icons";
import { presets } from "./presets";
import { Prose } from "./prose";
import { now, useStore } from "./store";

const AT_ONCE = 4; // requests
const EXAMPLE = "What is 17 * 23? => 391\nName the capital of France. => Paris";

interface Asked {
  question: string;
  expected: string; // nothing: any answer passes that is no error
}

/** Lines `question => what the answer has to hold`. */
export function askedOf(text: string): Asked[] {
  return text.split("\n").flatMap((line) => {
    const [question = "", expected = ""] = line.split("=>").map((part) => part.trim());
    return question ? [{ question, expected }] : [];
  });
}

export const passes = (turn: AssistantTurn, expected: string): boolean =>
  !turn.error && !turn.isCut && turn.finish !== "stopped" && turn.text.toLowerCase().includes(expected.toLowerCase());

export function Matrix({ settings, close }: { settings: Settings; close: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const stop = useRef<AbortController | null>(null);
  const [text, setText] = useState(EXAMPLE);
  const [names, setNames] = useState(["this chat"]);
  const [rows, setRows] = useState<Asked[]>([]);
  const [columns, setColumns] = useState<string[]>([]);
  const [cells, setCells] = useState<Record<string, AssistantTurn>>({});
  const [isBusy, setBusy] = useState(false);
  const model = useStore((all) => all.server.model);
  const all: Record<string, Settings> = { "this chat": settings };
  for (const [name, each] of Object.entries(presets())) all[name] = { ...DEFAULTS, ...each };
  useEffect(() => {
    dialog.current!.showModal();
    return () => stop.current?.abort();
  }, []);
  const run = async () => {
    const { signal } = (stop.current = new AbortController());
    const asked = askedOf(text);
    const left = asked.flatMap((each, row) => names.map((name) => ({ each, name, key: `${row} ${name}` })));
    setRows(asked);
    setColumns(names);
    setCells({});
    setBusy(true);
    const worker = async () => {
      for (let next = left.shift(); next && !signal.aborted; next = left.shift()) {
        const { each, name, key } = next;
        const show = (turns: Turn[]) => {
          const last = turns.at(-1);
          if (last?.role === "assistant") setCells((before) => ({ ...before, [key]: { ...last } }));
        };
        const question: Turn = { role: "user", text: each.question };
        await answer([question], { model: model!.id, key: now().apiKey, settings: all[name]!, signal, show });
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, worker));
    setBusy(false);
  };
  const passed = (name: string) =>
    rows.filter(({ expected }, row) => isDone(row, name) && passes(cells[`${row} ${name}`]!, expected));
  const isDone = (row: number, name: string) => Boolean(cells[`${row} ${name}`]?.finish ?? cells[`${row} ${name}`]?.error);
  return (
    <dialog ref={dialog} class="details matrix" aria-label="Questions and settings" onClose={close}>
      <button type="button" class="close" aria-label="Close" onClick={() => dialog.current!.close()}>
        <Icon name="close" />
      </button>
      <h2>Questions and settings</h2>
      <label>
        One question per line. After =&gt; what its answer must contain.
        <textarea rows={4} value={text} onInput={(event) => setText(event.currentTarget.value)} />
      </label>
      <div class="deeds">
        {Object.keys(all).map((name) => (
          <label key={name} class="check">
            <input
              type="checkbox"
              checked={names.includes(name)}
              onChange={({ currentTarget: { checked } }) =>
                setNames(checked ? [...names, name] : names.filter((each) => each !== name))
              }
            />
            <span>{name}</span>
          </label>
        ))}
        <button
          type="button"
          class="main"
          disabled={!model || !names.length || !askedOf(text).length}
          onClick={() => (isBusy ? stop.current?.abort() : void run())}
        >
          {isBusy ? "Stop" : "Ask all"}
        </button>
      </div>
      {rows.length > 0 && (
        <div class="markdown">
          <div class="table" tabIndex={0} role="group" aria-label="Answers">
            <table>
              <thead>
                <tr>
                  <th scope="col">Question</th>
                  {columns.map((name) => (
                    <th key={name} scope="col">
                      {name}: {passed(name).length} of {rows.length} pass
                    </th>
                  ))}
                </tr>
              </thead>
              <tbody>
                {rows.map(({ question, expected }, row) => (
                  <tr key={row}>
                    <th scope="row">{question}</th>
                    {columns.map((name) => (
                      <Cell key={name} turn={cells[`${row} ${name}`]} isDone={isDone(row, name)} expected={expected} />
                    ))}
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </div>
      )}
    </dialog>
  );
}

function Cell({ turn, isDone, expected }: { turn: AssistantTurn | undefined; isDone: boolean; expected: string }) {
  const isGood = turn !== undefined && passes(turn, expected);
  return (
    <td>
      {isDone && <strong class={isGood ? "pass" : "wrong"}>{isGood ? "✓ pass" : "✗ fail"}</strong>}
      <div class="cell" tabIndex={0}>
        {turn?.error ?? (turn?.text ? <Prose text={turn.text} isGrowing={!isDone} /> : turn && "…")}
      </div>
    </td>
  );
}
