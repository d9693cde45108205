// A code block: its language, a button that copies it, and colours once it is complete.
import { useEffect, useState } from "preact/hooks";
import { CopyButton } from "./copy";

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
        <CopyButton class="copy" text={() => text}>
          Copy
        </CopyButton>
      </figcaption>
      <pre tabIndex={0}>{html ? <code dangerouslySetInnerHTML={{ __html: html }} /> : <code>{text}</code>}</pre>
    </figure>
  );
}
