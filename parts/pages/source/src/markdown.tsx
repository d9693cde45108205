// Markdown as safe HTML. Math is loaded when an answer first needs it.
import DOMPurify from "dompurify";
import { Component, render } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { type Block, Blocks, htmlOf } from "./blocks";
import { Code } from "./code";

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName === "A") {
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer");
  }
});

const TAGS =
  "a p br hr h1 h2 h3 h4 h5 h6 ul ol li blockquote pre code em strong del sub sup kbd table thead tbody tr th td span div #text".split(
    " ",
  );
// What Markdown makes and nothing else: most other tags can ask another host for something.
const CLEANING = {
  ALLOWED_TAGS: TAGS,
  ALLOWED_ATTR: ["href", "title", "align", "start", "class", "tabindex", "role", "aria-label", "data-tex", "data-display"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
};

/** An answer's text; `isGrowing` while it streams. */
export function Markdown({ text, isGrowing = false }: { text: string; isGrowing?: boolean }) {
  const blocks = useRef(new Blocks()).current.of(text);
  return (
    <div class="markdown">
      {blocks.map((block, at) => (
        <Piece key={at} block={block} isDone={!isGrowing || at < blocks.length - 1} />
      ))}
    </div>
  );
}

/** One block, drawn again only when its text changes: a selection in a finished one stays. */
class Piece extends Component<{ block: Block; isDone: boolean }> {
  override shouldComponentUpdate(next: { block: Block; isDone: boolean }): boolean {
    return next.block.raw !== this.props.block.raw || next.isDone !== this.props.isDone;
  }

  override render({ block, isDone }: { block: Block; isDone: boolean }) {
    return block.code ? <Code {...block.code} isDone={isDone} /> : <Html raw={block.raw} isDone={isDone} />;
  }
}

function Html({ raw, isDone }: { raw: string; isDone: boolean }) {
  const place = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const found = isDone ? [...place.current!.querySelectorAll<HTMLElement>(".math")] : [];
    if (found.length) void import("./math").then(({ setMath }) => found.forEach(setMath));
  }, [raw, isDone]);
  useLayoutEffect(() => {
    // Code in a list or a quote is set as it is outside of them.
    const hosts = [...place.current!.querySelectorAll("pre")].map((code) => {
      const host = document.createElement("div");
      code.replaceWith(host);
      render(<Code text={code.textContent ?? ""} lang={code.title} isDone={isDone} />, host);
      return host;
    });
    return () => hosts.forEach((host) => void render(null, host));
  }, [raw, isDone]);
  return <div dir="auto" ref={place} dangerouslySetInnerHTML={{ __html: DOMPurify.sanitize(htmlOf(raw), CLEANING) }} />;
}
