// @anthropic-ai/sdk, Anthropic's Node SDK.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import { z } from "zod";

const { HARMONIUM_URL: URL, HARMONIUM_API_KEY: KEY } = process.env;
// Configuration:
const client = new Anthropic({ baseURL: URL, apiKey: KEY });

const model = "gpt-oss-20b";
const max_tokens = 500;
const messages = [{ role: "user", content: "What is the weather in Zürich?" }];
const ANSWER = "It is sunny in Zürich.";
const Report = z.object({ city: z.string(), degrees: z.number() });

export async function chat() {
  const message = await client.messages.create({ model, max_tokens, messages });
  assert.equal(message.content.at(-1).text, ANSWER);
  assert.equal(message.stop_reason, "end_turn");
}

export async function stream() {
  const texts = [];
  const stream = client.messages.stream({ model, max_tokens, messages });
  stream.on("text", (text) => texts.push(text));
  assert.equal(await stream.finalText(), ANSWER);
  assert.equal(texts.join(""), ANSWER);
}

export async function tools() {
  const cities = [];
  const weather = betaZodTool({
    name: "weather",
    description: "The weather in a city",
    inputSchema: z.object({ city: z.string() }),
    run: ({ city }) => {
      cities.push(city);
      return "sunny";
    },
  });
  for (const stream of [false, true]) {
    const body = { model, max_tokens, messages, tools: [weather], stream };
    const message = await client.beta.messages.toolRunner(body).runUntilDone();
    assert.equal(message.content.at(-1).text, ANSWER);
  }
  assert.deepEqual(cities, ["Zürich", "Zürich"]);
}

export async function structured() {
  const output_config = { format: zodOutputFormat(Report) };
  const message = await client.messages.parse({ model, max_tokens, messages, output_config });
  assert.deepEqual(message.parsed_output, { city: "Zürich", degrees: 21 });
}

export async function count_tokens() {
  assert((await client.messages.countTokens({ model, messages })).input_tokens > 0);
}
