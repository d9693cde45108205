// The request that was sent, ready to paste elsewhere.
import type { Body } from "./conversation";
import { base } from "./server";

export const KEY = "YOUR_KEY";

export function curl(body: Body, hasKey: boolean): string {
  const auth = hasKey ? ` \\\n  -H 'Authorization: Bearer ${KEY}'` : "";
  const json = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  return `curl -N ${base()}/v1/chat/completions \\\n  -H 'Content-Type: application/json'${auth} \\\n  -d '${json}'`;
}

// What OpenAI's library takes by `extra_body` only.
export const EXTENSIONS = new Set([
  "return_token_ids",
  "return_token_logprobs",
  "continue_token_ids",
  "top_k",
  "min_p",
  "repetition_penalty",
  "min_tokens",
  "thinking_token_budget",
]);

/** Those of the fields that are set. */
export const taken = (body: Body, names: string[]): Body =>
  Object.fromEntries(names.filter((name) => body[name] !== undefined).map((name) => [name, body[name]]));

export function python(body: Body, hasKey: boolean): string {
  const { stream: _, stream_options: __, ...all } = body;
  const own = taken(all, [...EXTENSIONS]);
  const rest: Body = Object.fromEntries(Object.entries(all).filter(([name]) => !(name in own)));
  if (Object.keys(own).length) rest.extra_body = own;
  return `from openai import OpenAI

client = OpenAI(base_url="${base()}/v1", api_key="${hasKey ? KEY : "none"}")
stream = client.chat.completions.create(
    stream=True,
${Object.entries(rest)
  .map(([name, value]) => `    ${name}=${literal(value, "    ")},`)
  .join("\n")}
)
for chunk in stream:
    if chunk.choices:
        delta = chunk.choices[0].delta
        print(delta.content or "", end="", flush=True)
${body.tools ? PYTHON_CALLS : ""}`;
}

const PYTHON_CALLS = `        for call in delta.tool_calls or []:
            print(call.function.name or "", call.function.arguments or "", end="", flush=True)
`;
const NODE_CALLS = `  for (const { function: call } of delta?.tool_calls ?? [])
    process.stdout.write(\`\${call.name ?? ""} \${call.arguments ?? ""}\`);
`;

export function node(body: Body, hasKey: boolean): string {
  const { stream_options: _, ...rest } = body;
  return `import OpenAI from "openai";

const client = new OpenAI({ baseURL: "${base()}/v1", apiKey: "${hasKey ? KEY : "none"}" });
const stream = await client.chat.completions.create(${JSON.stringify(rest, null, 2)});
for await (const chunk of stream) {
  const delta = chunk.choices[0]?.delta;
  process.stdout.write(delta?.content ?? "");
${body.tools ? NODE_CALLS : ""}}
`;
}

/** A JSON value as Python writes it. */
export function literal(value: unknown, indent: string): string {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value === "string") return JSON.stringify(value);
  if (typeof value === "number") return String(value);
  const inner = `${indent}    `;
  const [open, close, items] = Array.isArray(value)
    ? ["[", "]", value.map((each) => literal(each, inner))]
    : ["{", "}", Object.entries(value).map(([k, v]) => `${JSON.stringify(k)}: ${literal(v, inner)}`)];
  if (!items.length) return open + close;
  return `${open}\n${items.map((item) => `${inner}${item},\n`).join("")}${indent}${close}`;
}
