// Markdown as safe HTML, its code with a button that copies it.
import DOMPurify from "dompurify";
import { marked } from "marked";
import { useEffect, useRef } from "preact/hooks";
import { copy } from "./copy";

const TAGS =
  "a p br hr h1 h2 h3 h4 h5 h6 ul ol li blockquote pre code em strong b i u s del ins mark kbd sub sup".split(" ");
TAGS.push("table", "thead", "tbody", "tfoot", "tr", "th", "td", "span", "div", "details", "summary", "#text");

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName === "A") {
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer");
  }
  if (node.tagName === "PRE") node.setAttribute("tabindex", "0"); // scrolls by keyboard
});

export function Markdown({ text }: { text: string }) {
  const place = useRef<HTMLDivElement>(null);
  const html = DOMPurify.sanitize(marked.parse(text, { async: false, breaks: true }), {
    // What Markdown makes and nothing else: most other tags can ask another host for something.
    ALLOWED_TAGS: TAGS,
    ALLOWED_ATTR: ["href", "title", "align", "start", "class"],
    ALLOW_DATA_ATTR: false,
    ALLOW_ARIA_ATTR: false,
  });
  useEffect(() => {
    for (const block of place.current!.querySelectorAll("pre")) block.append(copyButton(block));
  }, [html]);
  return <div class="markdown" ref={place} dangerouslySetInnerHTML={{ __html: html }} />;
}

function copyButton(block: HTMLElement): HTMLButtonElement {
  const button = document.createElement("button");
  button.className = "copy";
  button.type = "button";
  button.textContent = "Copy";
  const text = block.querySelector("code")?.textContent ?? "";
  button.addEventListener("click", () => void copy(text, button));
  return button;
}
