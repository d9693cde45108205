// A button that copies a text, and says so.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";

const TOLD_MS = 1500;

export function CopyButton(props: { text: () => string; class?: string; label?: string; children: ComponentChildren }) {
  const [told, tell] = useState("");
  const copy = async () => {
    tell((await put(props.text())) ? "Copied" : "Not allowed");
    setTimeout(() => tell(""), TOLD_MS);
  };
  return (
    <button
      type="button"
      class={props.class}
      aria-label={told || (props.label ?? "Copy")}
      title={props.label ?? "Copy"}
      onClick={() => void copy()}
    >
      {told || props.children}
    </button>
  );
}

/** Put a text on the clipboard; over plain HTTP browsers give pages the older way only. */
async function put(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = Object.assign(document.createElement("textarea"), { value: text });
    const before = document.activeElement as HTMLElement | null;
    (document.querySelector("dialog[open]") ?? document.body).append(field);
    field.select();
    const isDone = document.execCommand("copy");
    field.remove();
    before?.focus();
    return isDone;
  }
}
