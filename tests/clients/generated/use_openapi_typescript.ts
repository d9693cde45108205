// A chat by the types that openapi-typescript wrote (api.d.ts).
import createClient from "openapi-fetch";
import type { paths } from "./api.d.ts";

declare const process: { env: Record<string, string> };

const model = "gpt-oss-20b";
const client = createClient<paths, "application/json">({
  baseUrl: process.env.HARMONIUM_URL,
  headers: { Authorization: `Bearer ${process.env.HARMONIUM_API_KEY}` },
});

const chat = await client.POST("/v1/chat/completions", {
  body: { model, messages: [{ role: "user", content: "Hi" }] },
});
if (chat.error) throw new Error(chat.error.error.message);
console.log(chat.data.choices[0].message.content);

const response = await client.POST("/v1/responses", { body: { model, input: "Hi" } });
if (response.error) throw new Error(response.error.error.message);
const item = response.data.output.at(-1);
console.log(item?.type === "message" ? item.content[0].text : item);

const message = await client.POST("/v1/messages", {
  body: { model, max_tokens: 99, messages: [{ role: "user", content: "Hi" }] },
});
if (message.error) throw new Error(message.error.error.message);
const block = message.data.content.at(-1);
console.log(block?.type === "text" ? block.text : block);
