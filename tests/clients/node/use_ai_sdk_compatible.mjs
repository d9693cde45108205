// The Vercel AI SDK with @ai-sdk/openai-compatible.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { checks } from "./use_ai_sdk.mjs";

const { HARMONIUM_URL: URL, HARMONIUM_API_KEY: KEY } = process.env;
// Configuration:
const harmonium = createOpenAICompatible({ name: "harmonium", baseURL: `${URL}/v1`, apiKey: KEY, supportsStructuredOutputs: true });

export const { chat, stream, tools, structured } = checks(harmonium("gpt-oss-20b"));
