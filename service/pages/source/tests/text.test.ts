import assert from "node:assert/strict";
import { test } from "node:test";
import { Blocks } from "../src/blocks";
import { median, parse, value } from "../src/metrics";
import { literal } from "../src/snippets";
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
