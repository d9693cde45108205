import assert from "node:assert/strict";
import { test } from "node:test";
import {
  type AssistantTurn,
  bodyOf,
  branch,
  type Conversation,
  checked,
  contentOf,
  contextUsed,
  courses,
  DEFAULTS,
  newAnswer,
  newConversation,
  type Turn,
  turnTo,
  without,
  wrong,
} from "../src/conversation";

const user = (text: string): Turn => ({ role: "user", text });
const answer = (text: string, part: Partial<AssistantTurn> = {}): AssistantTurn => ({
  ...newAnswer(),
  text,
  finish: "stop",
  ...part,
});
const chat = (turns: Turn[]): Conversation => ({ ...newConversation(), turns });
const texts = (turns: Turn[]) => turns.map((turn) => turn.text);

test("an edit keeps the other course, and both can be turned to", () => {
  const before = chat([user("a"), answer("b"), user("c"), answer("d")]);
  const edited = { ...before, ...branch(before, 0), turns: [user("A"), answer("B")] };
  assert.deepEqual(courses(edited, 0), { place: 1, orders: [0, 1] });
  const back = { ...edited, ...turnTo(edited, 0, -1) };
  assert.deepEqual(texts(back.turns), ["a", "b", "c", "d"]);
  const again = { ...back, ...turnTo(back, 0, 1) };
  assert.deepEqual(texts(again.turns), ["A", "B"]);
});

test("a course within a course survives turning away and back", () => {
  let held = chat([user("a"), answer("b"), user("c"), answer("d")]);
  held = { ...held, ...branch(held, 3), turns: [...held.turns.slice(0, 3), answer("d2")] };
  held = { ...held, ...branch(held, 0), turns: [user("A"), answer("B")] };
  held = { ...held, ...turnTo(held, 0, -1) };
  assert.deepEqual(texts(held.turns), ["a", "b", "c", "d2"]);
  held = { ...held, ...turnTo(held, 3, -1) };
  assert.deepEqual(texts(held.turns), ["a", "b", "c", "d"]);
});

test("the request leaves out failed, cut and empty turns with their questions, and what is not set", () => {
  const turns = [
    user("a"),
    answer("", { error: "no" }),
    user("b"),
    answer("half", { isCut: true }),
    user("c"),
    answer(""),
    user("d"),
  ];
  const body = bodyOf("m", turns, DEFAULTS);
  assert.deepEqual(
    (body.messages as { content: string }[]).map((message) => message.content),
    ["d"], // nor the questions that got no answer
  );
  assert.equal("temperature" in body, false);
  assert.equal("logprobs" in body, false);
});

test("settings become fields, and a wrong one is named", () => {
  const settings = { ...DEFAULTS, system: "S", temperature: "0", seed: "7", serverTools: ["browser"], probabilities: true };
  const body = bodyOf("m", [user("a")], settings);
  assert.equal(body.temperature, 0);
  assert.deepEqual(body.tools, [{ type: "web_search" }]);
  assert.equal(body.return_token_logprobs, true);
  assert.throws(() => bodyOf("m", [user("a")], { ...DEFAULTS, maxTokens: "1.5" }), /max_completion_tokens is "1.5"/);
  assert.throws(() => bodyOf("m", [user("a")], { ...DEFAULTS, usesSchema: true, schema: "{" }), /schema is not valid JSON/);
  assert.equal(wrong("temperature", ""), "");
  assert.match(wrong("top_p", "0"), /it takes 0.01 to 1/);
});

test("a file's fence is longer than any in it", () => {
  const files = [{ name: "a.md", text: "x\n````\ny", tokens: null }];
  assert.equal(contentOf({ role: "user", text: "Sum", files }), "a.md:\n`````\nx\n````\ny\n`````\n\nSum");
});

test("kept data of any shape is read or left out", () => {
  for (const value of [null, 7, "x", {}, { id: 1 }, { id: "1" }]) assert.equal(checked(value), null);
  const held = checked({
    id: "1",
    turns: [{ role: "user", text: "a" }, { text: 3 }, { role: "assistant", text: "b", tokenIds: [1] }],
  })!;
  assert.deepEqual(texts(held.turns), ["a", "b"]);
  assert.equal((held.turns[1] as AssistantTurn).isCut, true); // it never finished
});

test("the context in use counts what was said, the files and the draft", () => {
  const usage = { prompt_tokens: 100, completion_tokens: 50, completion_tokens_details: { reasoning_tokens: 20 } };
  const stats = { firstTokenMs: 1, reasoningMs: 0, totalMs: 2, usage };
  const held = {
    ...chat([user("a"), answer("b", { stats })]),
    draft: "12345678",
    attached: [{ name: "f", text: "", tokens: 30 }],
  };
  assert.equal(contextUsed(held), 162);
});

test("a question goes with its answers, and other courses keep their places", () => {
  const turns = [user("a"), answer("b"), user("c"), answer("d"), answer("e"), user("f"), answer("g")];
  let held = chat(turns);
  held = { ...held, ...branch(held, 6), turns: [...turns.slice(0, 6), answer("g2")] };
  held = { ...held, ...without(held, 2) };
  assert.deepEqual(texts(held.turns), ["a", "b", "f", "g2"]);
  assert.deepEqual(texts({ ...held, ...turnTo(held, 3, -1) }.turns), ["a", "b", "f", "g"]);
  held = { ...held, ...without(held, 2) };
  assert.deepEqual([texts(held.turns), held.branches, held.orders], [["a", "b"], [], {}]);
});

test("further fields of sampling are sent as typed, and a wrong one is named", () => {
  const more = {
    top_k: "40",
    presence_penalty: "-0.5",
    stop: "END\n\nSTOP",
    logit_bias: '{"5": -100}',
    thinking_token_budget: "64",
  };
  const body = bodyOf("m", [user("a")], { ...DEFAULTS, more });
  assert.deepEqual(
    [body.top_k, body.presence_penalty, body.stop, body.logit_bias, body.thinking_token_budget],
    [40, -0.5, ["END", "STOP"], { "5": -100 }, 64],
  );
  assert.throws(() => bodyOf("m", [user("a")], { ...DEFAULTS, more: { min_p: "2" } }), /min_p is "2"; it takes 0 to 1/);
});
