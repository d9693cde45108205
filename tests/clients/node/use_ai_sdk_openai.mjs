// The Vercel AI SDK with @ai-sdk/openai: responses, its default, and chat completions.
import { createOpenAI } from "@ai-sdk/openai";
import { checks } from "./use_ai_sdk.mjs";

const { HARMONIUM_URL: URL, HARMONIUM_API_KEY: KEY } = process.env;
// Configuration:
const harmonium = createOpenAI({ baseURL: `${URL}/v1`, apiKey: KEY });

const responses = checks(harmonium("gpt-oss-20b"));
export const { chat, stream, tools, structured } = checks(harmonium.chat("gpt-oss-20b"));
export const {
  chat: responses_chat,
  stream: responses_stream,
  tools: responses_tools,
  structured: responses_structured,
} = responses;
