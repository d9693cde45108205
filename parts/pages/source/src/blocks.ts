// Markdown in blocks: those that are complete never change again while an answer streams.
import { Marked, type Token, type TokenizerAndRendererExtension, type Tokens } from "marked";

// A formula stands in the text that Markdown reads as one word of the same length, so that no
// backslash, bar or underscore of it means anything there, wherever it stands.
const [BEGIN, FILL, FIRST] = ["\uE000", "\uE001", 0xe100];
const MOST = 6000; // formulas
const NO_GAP = String.raw`(?:(?!\n[ \t>]*\n)[\s\S])`; // a formula ends before an empty line
const FORMULA = new RegExp(
  [
    String.raw`(?<=^|\n)[ \t>]*(?:(?:[-*+]|\d+[.)])[ \t]+)*(?<fence>\`{3,}|~{3,})[^\n\`]*(?:\n[\s\S]*?)?(?:\n[ \t>]*\k<fence>[\`~]*[ \t]*(?=\n|$)|$)`,
    String.raw`(?<!\`)(?<tick>\`+)(?!\`)${NO_GAP}*?(?<!\`)\k<tick>(?!\`)`,
    String.raw`https?:\/\/[^\s<>]+`,
    String.raw`\\\[(?<square>${NO_GAP}+?)\\\]`,
    String.raw`\\\((?<round>${NO_GAP}+?)\\\)`,
    String.raw`(?<whole>\\begin\{(?<name>\w+\*?)\}${NO_GAP}+?\\end\{\k<name>\})`,
    String.raw`\\[\s\S]`,
    String.raw`\$\$(?<double>(?:(?!\$)${NO_GAP})+?)\$\$`,
    String.raw`[A-Za-z0-9]\$`,
    String.raw`\$(?![\s$])(?<single>(?:\\.|[^$\\\n\`])+?)(?<!\s)\$(?![A-Za-z0-9$])`,
  ].join("|"),
  "g",
);
const isPrice = (tex: string) => /^\d[\d.,]*\s/.test(tex) && !/[\\^_=+{}<>]/.test(tex);

interface Formula {
  raw: string;
  tex: string;
  isDisplay: boolean;
}

/** The text with its formulas as words, and the formulas. */
function masked(text: string): { words: string; formulas: Formula[] } {
  const formulas: Formula[] = [];
  if (/[\uE000-\uF8FF]/.test(text)) return { words: text, formulas }; // the words' own characters
  const words = text.replace(FORMULA, (...found) => {
    const [raw, at, groups] = [found[0] as string, found.at(-3) as number, found.at(-1) as Record<string, string | undefined>];
    const { square, round, whole, double, single } = groups;
    let tex = square ?? round ?? whole ?? double ?? single;
    if (tex === undefined || formulas.length === MOST || (single && isPrice(single))) return raw;
    const line = text.slice(text.lastIndexOf("\n", at - 1) + 1, at);
    tex = tex.replace(/^\s*>/.test(line) ? /\n[ \t>]*/g : /\n[ \t]+/g, "\n"); // the indent and marks of what holds it
    const isDisplay = (square ?? whole ?? double) !== undefined;
    formulas.push({ raw, tex: tex.trim(), isDisplay });
    return BEGIN + String.fromCharCode(FIRST + formulas.length - 1) + FILL.repeat(raw.length - 2);
  });
  return { words, formulas };
}

const WORD = /\uE000([\uE100-\uF8FF])\uE001*/;
const EACH_WORD = new RegExp(WORD, "g");

/** Formulas as they were written, where no formula can be. */
const unmasked = (text: string, formulas: Formula[], put = (raw: string) => raw): string =>
  text.replace(EACH_WORD, (word, index: string) => put(formulas[index.charCodeAt(0) - FIRST]?.raw ?? word));

let current: Formula[] = []; // of the text that is set now

const formula: TokenizerAndRendererExtension = {
  name: "formula",
  level: "inline",
  start: (text) => text.indexOf(BEGIN),
  tokenizer(text) {
    const found = WORD.exec(text);
    const of = found?.index === 0 ? current[found[1]!.charCodeAt(0) - FIRST] : undefined;
    return of && { type: "formula", raw: found![0], of };
  },
  renderer: ({ of }) => placeOf(of as Formula),
};

/** Tags that say how a text is set, in pairs and without attributes; others are text. */
const setTag: TokenizerAndRendererExtension = {
  name: "setTag",
  level: "inline",
  start: (text) => text.search(/<(?:br|sub|sup|kbd)\b/i),
  tokenizer(text) {
    const found = /^<br\s*\/?>/i.exec(text) ?? /^<(sub|sup|kbd)>((?:(?!<\1>)[^\n])*?)<\/\1>/i.exec(text);
    if (!found) return undefined;
    const [raw, name = "br", inner = ""] = found;
    return { type: "setTag", raw, name: name.toLowerCase(), tokens: this.lexer.inlineTokens(inner) };
  },
  renderer({ name, tokens }) {
    return name === "br" ? "<br>" : `<${name}>${this.parser.parseInline(tokens ?? [])}</${name}>`;
  },
};

const markdown = new Marked({
  gfm: true,
  breaks: true,
  tokenizer: {
    html: () => undefined, // what a model writes is text: `<input>` is shown, not dropped
    tag(text) {
      const raw = /^<(?:\/?[A-Za-z][^<>]*|!--[\s\S]*?--)>/.exec(text)?.[0];
      return raw ? ({ type: "text", raw, text: raw, escaped: false } as unknown as Tokens.Tag) : undefined;
    },
  },
  renderer: {
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "), // a form control would be removed
    image: ({ href, text }) => `${escaped(text)} (${escaped(href)})`, // a picture would ask another host
    code: ({ text, lang }) => `<pre title="${escaped(languageOf(lang))}"><code>${escaped(text)}</code></pre>`,
    table(token: Tokens.Table) {
      const cells = (row: Tokens.TableCell[], tag: string) =>
        row
          .map((cell) => `<${tag}${cell.align ? ` align="${cell.align}"` : ""}>${this.parser.parseInline(cell.tokens)}</${tag}>`)
          .join("");
      const rows = token.rows.map((row) => `<tr>${cells(row, "td")}</tr>`).join("");
      return `<div class="table" tabindex="0" role="group" aria-label="Table"><table><thead><tr>${cells(token.header, "th")}</tr></thead><tbody>${rows}</tbody></table></div>`;
    },
  },
  extensions: [formula, setTag],
});

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
    const { words, formulas } = masked(text.slice(this.offset));
    current = formulas;
    const tokens = markdown.lexer(words);
    const last = tokens.findLastIndex((token) => token.type !== "space");
    for (const token of tokens.slice(0, Math.max(last, 0))) {
      this.offset += token.raw.length;
      if (token.type !== "space") this.settled.push(blockOf(token, formulas));
    }
    return last < 0 ? this.settled : [...this.settled, blockOf(tokens[last]!, formulas)];
  }
}

/** A block as HTML that has yet to be sanitized. */
export function htmlOf(raw: string): string {
  const { words, formulas } = masked(raw);
  current = formulas;
  return unmasked(markdown.parse(words, { async: false }), formulas, escaped);
}

function blockOf(token: Token, formulas: Formula[]): Block {
  const raw = unmasked(token.raw, formulas);
  if (token.type !== "code") return { raw, code: null };
  return { raw, code: { text: unmasked(token.text as string, formulas), lang: languageOf(token.lang as string | undefined) } };
}

const languageOf = (lang = ""): string => lang.split(/\s/)[0]!;

const placeOf = ({ tex, isDisplay }: Formula): string =>
  `<span class="math" data-tex="${escaped(tex)}" data-display="${isDisplay}">${escaped(tex)}</span>`;

const ENTITIES: Record<string, string> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };

function escaped(text: string): string {
  return text.replace(/[&<>"']/g, (character) => ENTITIES[character]!);
}
