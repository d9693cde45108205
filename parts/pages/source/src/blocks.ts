// Markdown in blocks: those that are complete never change again while an answer streams.
import { Marked, type Token, type TokenizerAndRendererExtension, type Tokens } from "marked";

const mathInline: TokenizerAndRendererExtension = {
  name: "mathInline",
  level: "inline",
  start: (text) => text.search(/\\\(|\$\$/),
  tokenizer(text) {
    const found = /^\\\(([\s\S]+?)\\\)/.exec(text) ?? /^\$\$([^$]+?)\$\$/.exec(text);
    return found ? { type: "mathInline", raw: found[0], tex: found[1]!.trim(), display: found[0].startsWith("$$") } : undefined;
  },
  renderer: (token) => placeOf(token.tex as string, Boolean(token.display)),
};

const mathBlock: TokenizerAndRendererExtension = {
  name: "mathBlock",
  level: "block",
  start: (text) => text.match(/^(\\\[|\$\$)/m)?.index,
  tokenizer(text) {
    const found = /^\\\[([\s\S]+?)\\\][ \t]*(?:\n|$)/.exec(text) ?? /^\$\$([\s\S]+?)\$\$[ \t]*(?:\n|$)/.exec(text);
    return found ? { type: "mathBlock", raw: found[0], tex: found[1]!.trim() } : undefined;
  },
  renderer: (token) => placeOf(token.tex as string, true),
};

const markdown = new Marked({
  gfm: true,
  breaks: true,
  extensions: [],
  renderer: {
    html: ({ text }) => escaped(text), // what a model writes is text: `<input>` is shown, not dropped
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "), // a form control would be removed
    image: ({ href, text }) => `${escaped(text)} (${escaped(href)})`, // a picture would ask another host
    table(token: Tokens.Table) {
      const cells = (row: Tokens.TableCell[], tag: string) =>
        row
          .map((cell) => `<${tag}${cell.align ? ` align="${cell.align}"` : ""}>${this.parser.parseInline(cell.tokens)}</${tag}>`)
          .join("");
      const rows = token.rows.map((row) => `<tr>${cells(row, "td")}</tr>`).join("");
      return `<div class="table" tabindex="0" role="region" aria-label="Table"><table><thead><tr>${cells(token.header, "th")}</tr></thead><tbody>${rows}</tbody></table></div>`;
    },
  },
});
markdown.use({ extensions: [mathInline, mathBlock] });

export interface Block {
  raw: string;
  code: { text: string; lang: string } | null; // set by a component of its own
}

/** The blocks of a text that grows at its end. */
export class Blocks {
  private source = "";
  private settled: Block[] = [];
  private offset = 0; // where the settled blocks end

  /** All blocks; those before the last keep their identity from one call to the next. */
  of(text: string): Block[] {
    if (!text.startsWith(this.source)) {
      this.settled = [];
      this.offset = 0;
    }
    this.source = text;
    const tokens = markdown.lexer(text.slice(this.offset));
    const last = tokens.findLastIndex((token) => token.type !== "space");
    for (const token of tokens.slice(0, Math.max(last, 0))) {
      this.offset += token.raw.length;
      if (token.type !== "space") this.settled.push(blockOf(token));
    }
    return last < 0 ? this.settled : [...this.settled, blockOf(tokens[last]!)];
  }
}

/** A block as HTML that has yet to be sanitized. */
export const htmlOf = (raw: string): string => markdown.parse(raw, { async: false });

function blockOf(token: Token): Block {
  if (token.type !== "code") return { raw: token.raw, code: null };
  return {
    raw: token.raw,
    code: { text: token.text as string, lang: ((token.lang as string | undefined) ?? "").split(/\s/)[0]! },
  };
}

function placeOf(tex: string, isDisplay: boolean): string {
  const tag = isDisplay ? "div" : "span";
  return `<${tag} class="math" data-tex="${escaped(tex)}" data-display="${isDisplay}">${escaped(tex)}</${tag}>`;
}

const ENTITIES: Record<string, string> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };

function escaped(text: string): string {
  return text.replace(/[&<>"']/g, (character) => ENTITIES[character]!);
}
