// Markdown as safe HTML, its code with a button that copies it.
import DOMPurify from "dompurify";
import { marked } from "marked";
import { useEffect, useRef } from "preact/hooks";
import { copy } from "./copy";

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
    FORBID_TAGS: ["style", "form", "input", "button", "img"], // a picture would ask another host
    FORBID_ATTR: ["style", "id", "name"],
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
