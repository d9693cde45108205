// ollama: its client for JavaScript.
import assert from "node:assert/strict";
import { Ollama } from "ollama";

const { HARMONIUM_URL: URL, HARMONIUM_API_KEY: KEY } = process.env;
// Configuration:
const client = new Ollama({ host: URL, headers: { Authorization: `Bearer ${KEY}` } });

const model = "gpt-oss:20b";
const messages = [{ role: "user", content: "What is the weather in Zürich?" }];
const ANSWER = "It is sunny in Zürich.";
const parameters = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
};
const weather = {
  type: "function",
  function: { name: "weather", description: "The weather in a city.", parameters },
};
const Report = {
  type: "object",
  title: "Report",
  properties: { city: { type: "string" }, degrees: { type: "integer" } },
  required: ["city", "degrees"],
};

async function collected(pieces) {
  const all = [];
  for await (const piece of pieces) all.push(piece);
  return all;
}

export async function chat() {
  const answer = await client.chat({ model, messages });
  assert.equal(answer.message.content, ANSWER);
  assert(answer.total_duration > 0 && answer.done_reason === "stop");
}

export async function stream() {
  const pieces = await collected(await client.chat({ model, messages, stream: true, think: true }));
  assert.equal(pieces.map((piece) => piece.message.content).join(""), ANSWER);
  assert(pieces.length > 2 && pieces.at(-1).done);
}

export async function tools() {
  for (const stream of [false, true]) {
    const answer = await client.chat({ model, messages, tools: [weather], stream });
    const pieces = stream ? await collected(answer) : [answer];
    const { message } = pieces.find((piece) => piece.message.tool_calls);
    assert.deepEqual(message.tool_calls[0].function.arguments, { city: "Zürich" });
    const result = { role: "tool", content: "sunny", tool_name: "weather" };
    const asked = { model, messages: [...messages, message, result], tools: [weather] };
    assert.equal((await client.chat(asked)).message.content, ANSWER);
  }
}

export async function structured() {
  const answer = await client.chat({ model, messages, format: Report });
  assert.equal(JSON.parse(answer.message.content).degrees, 21);
}

export async function generate() {
  const answer = await client.generate({ model, prompt: messages[0].content });
  assert.equal(answer.response, ANSWER);
}

export async function models() {
  assert((await client.list()).models.some(({ name }) => name === model));
  assert((await client.show({ model })).capabilities.includes("thinking"));
  await assert.rejects(client.pull({ model }), /is not supported/);
}
