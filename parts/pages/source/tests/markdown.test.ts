import assert from "node:assert/strict";
import { test } from "node:test";
import { Blocks, htmlOf } from "../src/blocks";

/** Where a construct can stand; `block`: also what takes lines of its own. */
const indented = (text: string, by: string) => text.replaceAll("\n", `\n${by}`);
const CONTAINERS: Record<string, { put: (text: string) => string; block?: true }> = {
  paragraph: { put: (text) => `Before ${text} after.` },
  "line of its own": { put: (text) => `Before\n\n${text}\n\nafter.`, block: true },
  "list item": { put: (text) => `1. Before:\n\n   ${indented(text, "   ")}\n\n   after.`, block: true },
  "tight list item": { put: (text) => `- Before ${text} after.` },
  "nested list": { put: (text) => `- Outer\n  - Before:\n\n    ${indented(text, "    ")}\n\n    after.`, block: true },
  quote: { put: (text) => `> Before\n>\n> ${indented(text, "> ")}\n>\n> after.`, block: true },
  "quote in a list": { put: (text) => `- Outer\n\n  > Before\n  >\n  > ${indented(text, "  > ")}\n  >\n  > after.`, block: true },
  "table cell": { put: (text) => `| a | b |\n|---|---|\n| Before ${text} after. | x |` },
  bold: { put: (text) => `**Before ${text} after.**` },
  heading: { put: (text) => `## Before ${text} after.` },
};

/** What is written; what of it is set, in HTML; and the text that a reader sees. */
interface Construct {
  text: string;
  html: RegExp;
  seen: string;
  isBlock?: true;
  not?: RegExp;
}
const math = (tex: string, isDisplay = false) =>
  new RegExp(`<span class="math" data-tex="${escaped(tex)}" data-display="${isDisplay}">`);
const escaped = (tex: string) =>
  tex
    .replace(/&/g, "&amp;")
    .replace(/</g, "&lt;")
    .replace(/[\\^$.*+?()[\]{}|]/g, "\\$&");
const MATRIX = String.raw`A = \begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix}`;
const CONSTRUCTS: Record<string, Construct> = {
  code: { text: "`a_b*c*`", html: /<code>a_b\*c\*<\/code>/, seen: "a_b*c*" },
  "code with dollars": { text: "`$a$ and \\(b\\)`", html: /<code>\$a\$ and \\\(b\\\)<\/code>/, seen: "$a$ and \\(b\\)" },
  emphasis: { text: "*soft*", html: /<em>soft<\/em>/, seen: "soft" },
  deleted: { text: "~~gone~~", html: /<del>gone<\/del>/, seen: "gone" },
  link: { text: "[name](https://example.com/a_b_c)", html: /<a href="https:\/\/example.com\/a_b_c">name<\/a>/, seen: "name" },
  sub: { text: "H<sub>2</sub>O", html: /H<sub>2<\/sub>O/, seen: "H2O" },
  sup: { text: "x<sup>*2*</sup>", html: /x<sup><em>2<\/em><\/sup>/, seen: "x2" },
  kbd: { text: "<kbd>Ctrl</kbd>", html: /<kbd>Ctrl<\/kbd>/, seen: "Ctrl" },
  break: { text: "one<br>two<br/>three", html: /one<br>two<br>three/, seen: "onetwothree" },
  "a tag that is text": {
    text: 'Use <input type="x_y_z"> now',
    html: /&lt;input type=&quot;x_y_z&quot;&gt;/,
    seen: 'Use <input type="x_y_z"> now',
  },
  "a tag without its end": { text: "a <sub> b", html: /a &lt;sub&gt; b/, seen: "a <sub> b" },
  generics: { text: "std::vector<int> and <your name>", html: /vector&lt;int&gt;/, seen: "std::vector<int> and <your name>" },
  "TeX in round brackets": { text: String.raw`\( a_1 * b_1 \)`, html: math("a_1 * b_1"), seen: "a_1 * b_1" },
  "TeX in dollars": { text: String.raw`$x^2$, $\alpha_{i}$`, html: math("x^2"), seen: String.raw`x^2, \alpha_{i}` },
  "TeX with bars": { text: "$|x|$", html: math("|x|"), seen: "|x|" },
  "TeX with a sign of order": { text: "$a<b$", html: math("a<b"), seen: "a<b" },
  "display in square brackets": { text: String.raw`\[ ${MATRIX} \]`, html: math(MATRIX, true), seen: MATRIX },
  "display in dollars": { text: `$$ ${MATRIX} $$`, html: math(MATRIX, true), seen: MATRIX },
  "a matrix without brackets": {
    text: String.raw`\begin{aligned} a &= b \\ c &= d \end{aligned}`,
    html: math(String.raw`\begin{aligned} a &= b \\ c &= d \end{aligned}`, true),
    seen: String.raw`\begin{aligned} a &= b \\ c &= d \end{aligned}`,
  },
  prices: { text: "$5 and then $10", html: /\$5 and then \$10/, seen: "$5 and then $10", not: /math/ },
  "prices that close": { text: "US$5, 3$ or $1.50", html: /US\$5, 3\$ or \$1\.50/, seen: "US$5, 3$ or $1.50", not: /math/ },
  "an escaped dollar": { text: String.raw`\$5 and 6\$`, html: /\$5 and 6\$/, seen: "$5 and 6$", not: /math/ },
  variables: { text: "$HOME/bin:$PATH", html: /\$HOME\/bin:\$PATH/, seen: "$HOME/bin:$PATH", not: /math/ },
  "fenced code": {
    text: '```python\nx = {"a": 1}  # $y$\n\nif x < 2: pass\n```',
    html: /<pre title="python"><code>x = \{&quot;a&quot;: 1\} {2}# \$y\$\n\nif x &lt; 2: pass<\/code><\/pre>/,
    seen: 'x = {"a": 1}  # $y$\n\nif x < 2: pass',
    isBlock: true,
  },
  "display over lines": {
    text: "\\[\na\n- b\n= c\n\\]",
    html: math("a\n- b\n= c", true),
    seen: "a\n- b\n= c",
    isBlock: true,
  },
  table: {
    text: "| h |\n|---|\n| $c$ |",
    html: /<div class="table"[^>]*><table>.*<td><span class="math"/s,
    seen: "hc",
    isBlock: true,
  },
  list: { text: "- one\n- two", html: /<ul>\s*<li>one<\/li>\s*<li>two<\/li>\s*<\/ul>/, seen: "one\ntwo", isBlock: true },
  tasks: { text: "- [x] done\n- [ ] open", html: /☑ .*done.*☐ .*open/s, seen: "☑ done\n☐ open", isBlock: true },
  "a heading": { text: "### Head", html: /<h3>Head<\/h3>/, seen: "Head", isBlock: true },
};

const ENTITIES: Record<string, string> = { "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#39;": "'", "&amp;": "&" };
const text = (html: string) => html.replace(/<[^>]+>/g, "").replace(/&(?:lt|gt|quot|#39|amp);/g, (each) => ENTITIES[each]!);
const squeezed = (seen: string) => seen.replace(/\s+/g, " ");

for (const [container, { put, block }] of Object.entries(CONTAINERS)) {
  test(`everything is set in: ${container}`, () => {
    for (const [name, { text: written, html, seen, isBlock, not }] of Object.entries(CONSTRUCTS)) {
      if (isBlock && !block) continue;
      const found = htmlOf(put(written));
      assert.match(found, html, `${name}: ${found}`);
      if (not) assert.doesNotMatch(found, not, name);
      assert.ok(squeezed(text(found)).includes(squeezed(seen)), `${name}: ${text(found)}`);
      assert.match(squeezed(text(found)), /Before.*after\./, name);
    }
  });
}

test("a text that grows has the same blocks as the whole, also with formulas", () => {
  const whole = Object.values(CONTAINERS)
    .flatMap(({ put, block }) => Object.values(CONSTRUCTS).flatMap((each) => (each.isBlock && !block ? [] : [put(each.text)])))
    .join("\n\n");
  const blocks = new Blocks();
  for (let end = 1; end < whole.length; end += 97) blocks.of(whole.slice(0, end));
  const raws = (found: ReturnType<Blocks["of"]>) => found.map((each) => each.raw.trim());
  assert.deepEqual(raws(blocks.of(whole)), raws(new Blocks().of(whole)));
  assert.deepEqual(new Blocks().of("```sh\necho $a$b\n```")[0]!.code, { text: "echo $a$b", lang: "sh" });
});

test("a long text is masked in time that grows with it", () => {
  const count = (text: string) => new Blocks().of(text).length;
  for (const piece of ["$", "\\[", "`", "\\(", "$$", "\\begin{a}", "``` ", "<sub>"]) assert.ok(count(piece.repeat(3000)) > 0);
});
