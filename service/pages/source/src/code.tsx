// A code block: its language, a button that copies it, and colours once it is complete.
import { useEffect, useState } from "preact/hooks";
import { copy } from "./copy";

export function Code({ text, lang, isDone }: { text: string; lang: string; isDone: boolean }) {
  const [html, setHtml] = useState("");
  const [isWrapped, setWrapped] = useState(false);
  useEffect(() => {
    if (!isDone || !lang) return setHtml("");
    let isOver = false;
    void import("./highlight").then(({ highlighted }) => isOver || setHtml(highlighted(text, lang)));
    return () => {
      isOver = true;
    };
  }, [text, lang, isDone]);
  return (
    <figure class={isWrapped ? "codeblock wrapped" : "codeblock"}>
      <figcaption>
        <span>{lang || "text"}</span>
        <button type="button" aria-pressed={isWrapped} onClick={() => setWrapped(!isWrapped)}>
          Wrap
        </button>
        <button type="button" class="copy" onClick={(event) => void copy(text, event.currentTarget)}>
          Copy
        </button>
      </figcaption>
      <pre tabIndex={0}>{html ? <code dangerouslySetInnerHTML={{ __html: html }} /> : <code>{text}</code>}</pre>
    </figure>
  );
}
