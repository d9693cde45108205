// The Vercel AI SDK with one of its providers, of which this is what they have in common.
import assert from "node:assert/strict";
import { generateText, isStepCount, Output, streamText, tool } from "ai";
import { z } from "zod";

const prompt = "What is the weather in Zürich?";
const ANSWER = "It is sunny in Zürich.";
const schema = z.object({ city: z.string(), degrees: z.number() });
const weather = tool({
  description: "The weather in a city",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => `sunny in ${city}`,
});
const loop = { tools: { weather }, stopWhen: isStepCount(3) };

/** The checks of a model, as functions by name. */
export function checks(model) {
  return {
    async chat() {
      const { text, usage } = await generateText({ model, prompt });
      assert.equal(text, ANSWER);
      assert(usage.outputTokens > 0);
    },

    async stream() {
      const text = await read(streamText({ model, prompt }));
      assert.equal(text, ANSWER);
    },

    async tools() {
      const { text, steps } = await generateText({ model, prompt, ...loop });
      assert.equal(text, ANSWER);
      assert.deepEqual(steps[0].toolCalls[0].input, { city: "Zürich" });
      const streamed = await read(streamText({ model, prompt, ...loop }));
      assert(streamed.endsWith(ANSWER));
    },

    async structured() {
      const { output } = await generateText({ model, prompt, output: Output.object({ schema }) });
      assert.deepEqual(output, { city: "Zürich", degrees: 21 });
    },
  };
}

async function read(result) {
  const parts = [];
  for await (const part of result.textStream) parts.push(part);
  return parts.join("");
}
