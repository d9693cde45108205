// openai, the Node SDK: chat completions and responses.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const { HARMONIUM_URL: URL, HARMONIUM_API_KEY: KEY } = process.env;
// Configuration:
const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: KEY });

const model = "gpt-oss-20b";
const question = "What is the weather in Zürich?";
const messages = [{ role: "user", content: question }];
const ANSWER = "It is sunny in Zürich.";
const REPORT = { city: "Zürich", degrees: 21 };
const Report = z.object({ city: z.string(), degrees: z.number() });
const parameters = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};

export async function chat() {
  const completion = await client.chat.completions.create({ model, messages });
  assert.equal(completion.choices[0].message.content, ANSWER);
}

export async function stream() {
  const deltas = [];
  const runner = client.chat.completions.stream({ model, messages });
  runner.on("content", (delta) => deltas.push(delta));
  assert.equal(await runner.finalContent(), ANSWER);
  assert.equal(deltas.join(""), ANSWER);
}

export async function tools() {
  const cities = [];
  const weather = {
    name: "weather",
    parameters,
    parse: JSON.parse,
    function: ({ city }) => {
      cities.push(city);
      return "sunny";
    },
  };
  for (const stream of [false, true]) {
    const tools = [{ type: "function", function: weather }];
    const runner = client.chat.completions.runTools({ model, messages, tools, stream });
    assert.equal(await runner.finalContent(), ANSWER);
  }
  assert.deepEqual(cities, ["Zürich", "Zürich"]);
}

export async function structured() {
  const response_format = zodResponseFormat(Report, "report");
  const completion = await client.chat.completions.parse({ model, messages, response_format });
  assert.deepEqual(completion.choices[0].message.parsed, REPORT);
}

export async function responses() {
  const response = await client.responses.create({ model, input: question });
  assert.equal(response.output_text, ANSWER);
}

export async function responses_stream() {
  const deltas = [];
  const stream = client.responses.stream({ model, input: question });
  stream.on("response.output_text.delta", (event) => deltas.push(event.delta));
  assert.equal((await stream.finalResponse()).output_text, ANSWER);
  assert.equal(deltas.join(""), ANSWER);
}

export async function responses_tools() {
  const tools = [{ type: "function", name: "weather", parameters, strict: true }];
  const input = [{ role: "user", content: question }];
  const first = await client.responses.create({ model, input, tools, store: false });
  const call = first.output.find((item) => item.type === "function_call");
  assert.deepEqual(JSON.parse(call.arguments), { city: "Zürich" });
  input.push(...first.output);
  input.push({ type: "function_call_output", call_id: call.call_id, output: "sunny" });
  const last = await client.responses.create({ model, input, tools, store: false });
  assert.equal(last.output_text, ANSWER);
}

export async function responses_structured() {
  const text = { format: zodTextFormat(Report, "report") };
  const response = await client.responses.parse({ model, input: question, text });
  assert.deepEqual(response.output_parsed, REPORT);
}
