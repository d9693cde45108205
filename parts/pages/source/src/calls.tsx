// The calls of tools in an answer: one line each, unfolded where a person has to answer them.
import { useState } from "preact/hooks";
import type { Call } from "./conversation";
import { runTool } from "./tools";

export function Calls(props: { calls: Call[]; isOpen: boolean; send: (calls: Call[]) => void }) {
  const [drafts, setDrafts] = useState<Call[] | null>(null);
  const calls = drafts ?? props.calls;
  const change = (at: number, part: Partial<Call>) =>
    setDrafts(calls.map((call, index) => (index === at ? { ...call, ...part } : call)));
  const send = () => {
    setDrafts(null);
    props.send(calls.map((call) => ({ ...call, result: call.result ?? "" })));
  };
  return (
    <div class="calls">
      {calls.map((call, at) => (
        <details key={call.id} class="call" open={props.isOpen} aria-label={`Calls ${call.name}`}>
          <summary>
            <code>{`${call.name}(${short(call.arguments)})`}</code>
            {call.result !== null && ` → ${short(call.result)} ✓`}
          </summary>
          <label>
            Arguments
            <textarea
              rows={rowsOf(call.arguments)}
              readOnly={!props.isOpen}
              value={call.arguments}
              onInput={(event) => change(at, { arguments: event.currentTarget.value })}
            />
          </label>
          <label>
            Result
            <textarea
              rows={rowsOf(call.result ?? "")}
              readOnly={!props.isOpen}
              placeholder={props.isOpen ? "The result of your tool" : ""}
              value={call.result ?? ""}
              onInput={(event) => change(at, { result: event.currentTarget.value })}
            />
          </label>
          {props.isOpen && runTool(call.name, call.arguments) !== null && (
            <button type="button" onClick={() => change(at, { result: runTool(call.name, call.arguments) })}>
              Run in the page
            </button>
          )}
        </details>
      ))}
      {props.isOpen && (
        <button type="button" class="main" onClick={send}>
          Send results
        </button>
      )}
    </div>
  );
}

/** As high as the text needs, so that a whole call is seen at once. */
const rowsOf = (text: string) => Math.min(8, text.split("\n").length + Math.floor(text.length / 70));

const MAX_SHORT = 60;

/** JSON in few words: the values of an object, without their names. */
function short(json: string): string {
  const text = valuesOf(json);
  return text.length > MAX_SHORT ? `${text.slice(0, MAX_SHORT)} …` : text;
}

function valuesOf(json: string): string {
  try {
    const found: unknown = JSON.parse(json);
    if (found === null || typeof found !== "object") return String(found);
    return Object.values(found)
      .map((value) => (typeof value === "object" ? JSON.stringify(value) : String(value)))
      .join(", ");
  } catch {
    return json;
  }
}
