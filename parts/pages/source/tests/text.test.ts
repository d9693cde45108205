import assert from "node:assert/strict";
import { test } from "node:test";
import { Blocks } from "../src/blocks";
import { fieldsOf, KINDS, kindOf, schemaOf } from "../src/fields";
import { median, parse, value } from "../src/metrics";
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
