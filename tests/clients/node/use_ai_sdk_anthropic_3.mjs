// The Vercel AI SDK with @ai-sdk/anthropic of version 3, whose schema of an answer is stricter.
import { createAnthropic } from "ai-sdk-anthropic-3";
import { checks } from "./use_ai_sdk.mjs";

const { HARMONIUM_URL: URL, HARMONIUM_API_KEY: KEY } = process.env;
// Configuration:
const harmonium = createAnthropic({ baseURL: `${URL}/v1`, apiKey: KEY });

export const { chat, stream, tools, structured } = checks(harmonium("gpt-oss-20b"));
