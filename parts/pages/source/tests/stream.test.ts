import assert from "node:assert/strict";
import { test } from "node:test";
import { Cut, type Piece, streamChat } from "../src/api";
import { answer } from "../src/chat";
import { type AssistantTurn, DEFAULTS, newAnswer, type Turn } from "../src/conversation";
import { spansOf } from "../src/times";

const chunk = (choice: object) => `data: ${JSON.stringify({ choices: [{ delta: {}, ...choice }] })}\n\n`;
const END = "data: [DONE]\n\n";

/** Let the next request be answered with these parts; gives the bodies that were sent. */
function answered(parts: string[], cut = false): object[] {
  const sent: object[] = [];
  globalThis.fetch = (async (_: string, init: RequestInit) => {
    sent.push(JSON.parse(init.body as string));
    let at = 0;
    const stream = new ReadableStream<Uint8Array>({
      pull(controller) {
        const part = parts[at++];
        if (part !== undefined) controller.enqueue(new TextEncoder().encode(part));
        else if (cut) controller.error(new TypeError("network error"));
        else controller.close();
      },
    });
    return new Response(stream);
  }) as typeof fetch;
  return sent;
}

async function pieces(parts: string[]): Promise<Piece[]> {
  answered(parts);
  const found: Piece[] = [];
  for await (const piece of streamChat({}, "", new AbortController().signal)) if (piece.kind !== "event") found.push(piece);
  return found;
}

test("events are read wherever the network cuts them", async () => {
  const text =
    chunk({ delta: { content: "Grüße 👩‍🚀" } }) +
    ": engine restarted, the answer continues\n\n" +
    chunk({ finish_reason: "stop" }) +
    END;
  for (const size of [1, 7, 1000]) {
    const parts = text.match(new RegExp(`[\\s\\S]{1,${size}}`, "g"))!;
    const kinds = (await pieces(size === 1 ? [text] : parts)).map((piece) => piece.kind);
    assert.deepEqual(kinds, ["content", "restart", "finish"]);
  }
});

test("a stream without its end mark was cut; an error event is the server's error", async () => {
  await assert.rejects(pieces([chunk({ delta: { content: "a" } })]), Cut);
  await assert.rejects(pieces([`data: {"error": {"message": "Too long.", "param": "messages"}}\n\n`]), /Too long/);
});

async function reply(turns: Turn[], begun?: Parameters<typeof answer>[1]["begun"]): Promise<AssistantTurn> {
  let shown: Turn[] = [];
  const asking = { model: "m", key: "", settings: DEFAULTS, signal: new AbortController().signal, begun };
  await answer(turns, { ...asking, show: (grown) => (shown = grown) });
  return shown.at(-1) as AssistantTurn;
}

const question: Turn = { role: "user", text: "?" };
const token = (id: number, content: string) => chunk({ token_ids: [id] }) + chunk({ delta: { content } });

test("a cut answer keeps its tokens and is continued in its place", async () => {
  answered([token(1, "one "), token(2, "two")], true);
  const half = await reply([question]);
  assert.equal(half.isCut, true);
  assert.deepEqual(half.tokenIds, [1, 2]);
  const sent = answered([
    chunk({ token_ids: [1, 2, 3] }),
    chunk({ delta: { content: "one two three" } }),
    chunk({ finish_reason: "stop" }),
    END,
  ]);
  const whole = await reply([question], { turn: half, ids: [1, 2], tokens: [] });
  assert.deepEqual((sent[0] as { continue_token_ids: number[] }).continue_token_ids, [1, 2]);
  assert.equal(whole.text, "one two three");
  assert.equal(whole.isCut, false);
});

test("tokens that were given keep what was known of them", async () => {
  const known = [{ id: 1, token: "a", logprob: -1, rivals: [], ms: 4 }];
  const entry = { id: 2, token: "b", logprob: -2, top_logprobs: [{ id: 9, token: "z", logprob: -3 }] };
  answered([
    chunk({ token_ids: [1, 2], token_logprobs: [null, entry] }),
    chunk({ delta: { content: "ab" } }),
    chunk({ finish_reason: "stop" }),
    END,
  ]);
  const found = await reply([question], { turn: newAnswer(), ids: [1], tokens: known });
  assert.deepEqual(found.tokens[0], known[0]);
  assert.equal(found.tokens[1]!.rivals[0]!.token, "z");
});

test("the page's tools run until the model answers; others wait for a person", async () => {
  const call = (name: string) => [
    chunk({ delta: { tool_calls: [{ index: 0, id: "c", function: { name, arguments: "" } }] } }) +
      chunk({ delta: { tool_calls: [{ index: 0, function: { arguments: '{"expression": "2*3"}' } }] } }) +
      chunk({ finish_reason: "tool_calls" }) +
      END,
  ];
  const rounds = [call("calculator"), [chunk({ delta: { content: "6" } }) + chunk({ finish_reason: "stop" }) + END]];
  const sent: { messages: object[] }[] = [];
  globalThis.fetch = (async (_: string, init: RequestInit) => {
    sent.push(JSON.parse(init.body as string));
    return new Response(rounds[sent.length - 1]!.join(""));
  }) as typeof fetch;
  assert.equal((await reply([question])).text, "6");
  assert.deepEqual(sent[1]!.messages.at(-1), { role: "tool", tool_call_id: "c", content: '{"result":6}' });
  answered(call("theirs"));
  assert.equal((await reply([question])).calls[0]!.result, null);
});

test("the time of a restart is told once, and is no time of thinking", async (context) => {
  let now = 0;
  context.mock.method(performance, "now", () => now);
  const thought = (id: number) => chunk({ token_ids: [id] }) + chunk({ delta: { reasoning: "Hm. " } });
  const restart = ": engine restarted, the answer continues\n\n";
  answered([thought(1), thought(2), restart, thought(3), token(4, "Yes."), chunk({ finish_reason: "stop" }), END]);
  let turns: Turn[] = [];
  const show = (shown: Turn[]) => {
    turns = shown;
    const { text, restarts, reasoning } = shown.at(-1) as AssistantTurn;
    const next = [100, 400, restarts.length ? 9500 : 9400, 9700]; // when the next piece comes
    now = text ? 9900 : next[reasoning.length / 4]!;
  };
  const asking = { model: "m", key: "", settings: DEFAULTS, signal: new AbortController().signal };
  await answer([question], { ...asking, show });
  const times = spansOf(turns, turns.length - 1).map(({ name, ms }) => [name, ms]);
  assert.deepEqual(times, [
    ["Queue and prompt", 100],
    ["Thinking", 400],
    ["Engine restarted", 9000],
    ["Answer", 400],
  ]);
});
