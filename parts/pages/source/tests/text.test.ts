import assert from "node:assert/strict";
import { test } from "node:test";
import { Blocks } from "../src/blocks";
import { type Body, DEFAULTS } from "../src/conversation";
import { langChain, messages, responses } from "../src/families";
import { fieldsOf, functionsOf, KINDS, kindOf, newFunction, schemaFrom, schemaOf, toolsOf } from "../src/fields";
import { median, parse, value } from "../src/metrics";
import { linkOf, readLink } from "../src/share";
import { literal, node, python } from "../src/snippets";
import { calculate, runTool } from "../src/tools";

test("the calculator follows precedence, brackets and signs", () => {
  const cases: [string, number][] = [
    ["17 * 23", 391],
    ["2 + 3 * 4", 14],
    ["(2 + 3) * 4", 20],
    ["2 ^ 3 ^ 2", 512],
    ["-2 ** 2", 4],
    ["10 / 4 - 1", 1.5],
    ["1,000 × 3 ÷ 2", 1500],
    [".5 + .5", 1],
  ];
  for (const [text, result] of cases) assert.equal(calculate(text), result, text);
});

test("what is no arithmetic is refused, also to the model", () => {
  for (const text of ["alert(1)", "2 +", "(2", "", "2 2", "1e3"]) assert.throws(() => calculate(text), text);
  assert.match(runTool("calculator", '{"expression": "x"}')!, /cannot read x/);
  assert.equal(runTool("unknown", "{}"), null);
});

test("JSON is written as Python", () => {
  const value = { a: [true, null, 'x"y'], b: {}, c: 1.5 };
  assert.equal(
    literal(value, ""),
    '{\n    "a": [\n        True,\n        None,\n        "x\\"y",\n    ],\n    "b": {},\n    "c": 1.5,\n}',
  );
});

test("metrics are summed by name, and a median lies in its bucket", () => {
  const text = (one: number, two: number) => `# HELP x
harmonium_running{engine="0"} 2
harmonium_running{engine="1"} 3
harmonium_gap_bucket{le="0.1"} ${one}
harmonium_gap_bucket{le="0.2"} ${two}
harmonium_gap_bucket{le="+Inf"} ${two}`;
  const [before, after] = [parse(text(5, 5), 0), parse(text(5, 15), 2)];
  assert.equal(value(after, "running"), 5);
  assert.equal(value(after, "absent"), null);
  assert.ok(Math.abs(median(before, after, "gap")! - 0.15) < 1e-9);
  assert.equal(median(after, after, "gap"), null);
});

test("blocks that are complete stay the same objects while a text grows", () => {
  const blocks = new Blocks();
  const first = blocks.of("One.\n\nTwo begins");
  const second = blocks.of("One.\n\nTwo begins and goes on.\n\n```py\nx = 1");
  assert.equal(second[0], first[0]);
  assert.deepEqual(second[2]!.code, { text: "x = 1", lang: "py" });
  const other = blocks.of("Another text.");
  assert.equal(other.length, 1);
});

test("what OpenAI's library does not know goes by extra_body, and calls are printed", () => {
  const body = { model: "m", messages: [], tools: [{ type: "function" }], stream: true, continue_token_ids: [1] };
  globalThis.document = { baseURI: "http://here/" } as Document;
  const text = python(body, false);
  assert.match(text, /extra_body=\{\n {8}"continue_token_ids": \[/);
  assert.match(text, /for call in delta\.tool_calls/);
  assert.match(node(body, false), /delta\?\.tool_calls/);
  assert.doesNotMatch(python({ model: "m", messages: [] }, false), /extra_body|tool_calls/);
});

test("a schema is a form and back, and what a form cannot show stays as it is", () => {
  const properties = { a: { type: "string", maxLength: 3 }, b: KINDS["one of"], c: { type: ["string", "null"] } };
  const schema = { type: "object", properties, required: ["a"], additionalProperties: false };
  const fields = fieldsOf(JSON.stringify(schema))!;
  assert.deepEqual(
    fields.map((each) => [each.name, kindOf(each.schema), each.isRequired]),
    [
      ["a", "text", true],
      ["b", "one of", false],
      ["c", "", false],
    ],
  );
  assert.deepEqual(JSON.parse(schemaOf(fields)), schema);
  for (const other of ["{", "[]", '{"type":"string"}', JSON.stringify({ ...schema, $defs: {} })])
    assert.equal(fieldsOf(other), null);
});

test("an example gives a schema that has all of it", () => {
  const schema = JSON.parse(schemaFrom('{"a": 1, "b": [{"c": "x", "d": 0.5}], "e": null, "f": true, "g": []}')!) as object;
  const inner = { c: { type: "string" }, d: { type: "number" } };
  assert.deepEqual(schema, {
    type: "object",
    properties: {
      a: { type: "integer" },
      b: { type: "array", items: { type: "object", properties: inner, required: ["c", "d"], additionalProperties: false } },
      e: { type: ["string", "null"] },
      f: { type: "boolean" },
      g: { type: "array", items: { type: "string" } },
    },
    required: ["a", "b", "e", "f", "g"],
    additionalProperties: false,
  });
  for (const text of ["", "[1]", "7", "{"]) assert.equal(schemaFrom(text), null);
});

test("functions of one's own are a form, and what a form cannot show stays as it is written", () => {
  const first = newFunction([]);
  const second = newFunction([first, { ...first, name: "function_3" }]);
  assert.deepEqual([first.name, second.name], ["function_1", "function_4"]);
  assert.deepEqual(fieldsOf(JSON.stringify(first.parameters)), []);
  assert.deepEqual(functionsOf(toolsOf([first, second])), [first, second]);
  assert.equal(toolsOf([]), "");
  assert.deepEqual(functionsOf(" "), []);
  const bare = functionsOf('[{"type": "function", "function": {"name": "f"}}]');
  assert.deepEqual(bare, [{ ...first, name: "f" }]);
  for (const text of ["{", "{}", '[{"type": "mcp"}]', '[{"type": "function"}]']) assert.equal(functionsOf(text), null, text);
  assert.equal(functionsOf('[{"type": "function", "function": {"name": "f", "strict": true}}]'), null);
});

test("a link holds the question and what differs, and nothing of another shape is taken from one", () => {
  globalThis.document = { baseURI: "http://here/prefix/#old" } as Document;
  const settings = { ...DEFAULTS, seed: "7", system: "Grüße 👋", more: { top_k: "5" } };
  const link = linkOf({ text: "Wie geht's?", settings });
  assert.match(link, /^http:\/\/here\/prefix\/#share=[\w-]+$/);
  assert.deepEqual(readLink(new URL(link).hash), { text: "Wie geht's?", settings });
  const forged = { text: 7, settings: { seed: 7, tools: "x", effort: "high", more: { top_k: 5 }, __proto__x: "y" } };
  assert.deepEqual(readLink(`#share=${btoa(JSON.stringify(forged))}`), { text: "7", settings: { ...DEFAULTS, effort: "high" } });
  for (const other of ["", "#1234", "#share=%%%", "#share=bm8"]) assert.equal(readLink(other), null);
});

test("a request is told to the other APIs and libraries", () => {
  globalThis.document = { baseURI: "http://here/" } as Document;
  const call = { id: "c1", type: "function", function: { name: "add", arguments: '{"a": 1}' } };
  const tool = {
    type: "function",
    function: { name: "add", description: "Adds.", parameters: { type: "object" }, strict: true },
  };
  const body: Body = {
    model: "m",
    messages: [
      { role: "system", content: "S" },
      { role: "user", content: "Q" },
      { role: "assistant", content: null, tool_calls: [call] },
      { role: "tool", tool_call_id: "c1", content: "2" },
    ],
    reasoning_effort: "low",
    top_k: 5,
    tools: [tool],
    response_format: { type: "json_schema", json_schema: { name: "answer", schema: { type: "object" }, strict: true } },
    stream: true,
  };
  const squeezed = (text: string) => text.replace(/\s+/g, " ");
  const asResponses = squeezed(responses(body, true));
  assert.match(
    asResponses,
    /instructions="S", input=\[ \{ "role": "user", "content": "Q", \}, \{ "type": "function_call", "call_id": "c1"/,
  );
  assert.match(asResponses, /"type": "function_call_output", "call_id": "c1", "output": "2"/);
  assert.match(asResponses, /tools=\[ \{ "type": "function", "name": "add"/);
  assert.match(asResponses, /text=\{ "format": \{ "type": "json_schema", "name": "answer"/);
  const asMessages = squeezed(messages(body, false));
  assert.match(asMessages, /max_tokens=4096, system="S"/);
  assert.match(asMessages, /"type": "tool_use", "id": "c1", "name": "add", "input": \{ "a": 1, \}/);
  assert.match(asMessages, /"role": "user", "content": \[ \{ "type": "tool_result", "tool_use_id": "c1", "content": "2"/);
  assert.match(asMessages, /"input_schema": \{ "type": "object", \}/);
  assert.match(asMessages, /extra_body=\{ "top_k": 5, \}/);
  const asLangChain = squeezed(langChain(body, true));
  assert.match(
    asLangChain,
    /base_url="http:\/\/here\/v1", api_key="YOUR_KEY", reasoning_effort="low", extra_body=\{ "top_k": 5, \}/,
  );
  assert.match(asLangChain, /\.bind\( tools=/);
});
