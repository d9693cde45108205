// A request for each route, ready to run: as curl, Python and Node.

import { base } from "./server";
import { literal } from "./snippets";

export type Language = "curl" | "Python" | "Node";
export const LANGUAGES: Language[] = ["curl", "Python", "Node"];

export interface Call {
  method: string;
  path: string;
  body: Record<string, unknown> | null;
  hasKey: boolean;
  model: string;
}

const HELLO = [{ role: "user", content: "Hello! What can you do?" }];

/** Whether a route takes a file, which the catalogue does not send. */
export const takesFile = (method: string, path: string): boolean => method === "POST" && path === "/v1/files";

interface Sdk {
  package: "openai" | "anthropic";
  call: string;
  id?: boolean; // whether the route's parameter is the first argument
  shown: string;
}

const CREATE: Record<string, Sdk> = {
  "POST /v1/chat/completions": { package: "openai", call: "chat.completions.create", shown: "choices[0].message.content" },
  "POST /v1/responses": { package: "openai", call: "responses.create", shown: "output_text" },
  "GET /v1/responses/{response_id}": { package: "openai", call: "responses.retrieve", id: true, shown: "output_text" },
  "POST /v1/responses/{response_id}/cancel": { package: "openai", call: "responses.cancel", id: true, shown: "status" },
  "POST /v1/completions": { package: "openai", call: "completions.create", shown: "choices[0].text" },
  "POST /v1/batches": { package: "openai", call: "batches.create", shown: "status" },
  "GET /v1/batches/{batch_id}": { package: "openai", call: "batches.retrieve", id: true, shown: "status" },
  "POST /v1/batches/{batch_id}/cancel": { package: "openai", call: "batches.cancel", id: true, shown: "status" },
  "GET /v1/files/{file_id}": { package: "openai", call: "files.retrieve", id: true, shown: "status" },
  "GET /v1/models": { package: "openai", call: "models.list", shown: "data[0].id" },
  "GET /v1/models/{model_id}": { package: "openai", call: "models.retrieve", id: true, shown: "id" },
  "POST /v1/messages/count_tokens": { package: "anthropic", call: "messages.countTokens", shown: "input_tokens" },
  "POST /v1/messages": { package: "anthropic", call: "messages.create", shown: "content" },
};

export function code(language: Language, call: Call): string {
  if (takesFile(call.method, call.path)) return uploads[language](call);
  const sdk = CREATE[`${call.method} ${call.path}`];
  const path = placed(call.path);
  if (language === "curl") return curl({ ...call, path });
  if (language === "Python") return sdk ? pythonSdk(sdk, call, path) : python({ ...call, path });
  return sdk ? nodeSdk(sdk, call, path) : node({ ...call, path });
}

/** A parameter of the path in capitals: there is no example of what has yet to be made. */
const placed = (path: string) => path.replace(/\{(\w+)\}/g, (_, name: string) => name.toUpperCase());
const key = (hasKey: boolean) => (hasKey ? "YOUR_KEY" : "none");
const address = (sdk: Sdk) => (sdk.package === "openai" ? `${base()}/v1` : base());
const parameter = (path: string) => /[A-Z_]{4,}/.exec(path)![0];

function curl({ method, path, body, hasKey }: Call): string {
  const url = path.includes("?") ? `'${base()}${path}'` : base() + path;
  const lines = [`curl ${method === "GET" || body ? "" : `-X ${method} `}${url}`];
  if (hasKey) lines.push(`-H 'Authorization: Bearer YOUR_KEY'`);
  if (body) lines.push(`-H 'Content-Type: application/json'`, `-d '${JSON.stringify(body, null, 2).replaceAll("'", "'\\''")}'`);
  return lines.join(" \\\n  ");
}

function pythonSdk(sdk: Sdk, { body, hasKey }: Call, path: string): string {
  const name = sdk.package === "openai" ? "OpenAI" : "Anthropic";
  const call = sdk.call.replace("countTokens", "count_tokens");
  const given = body
    ? `\n${Object.entries(body)
        .map(([field, value]) => `    ${field}=${literal(value, "    ")},\n`)
        .join("")}`
    : sdk.id
      ? `"${parameter(path)}"`
      : "";
  return `from ${sdk.package} import ${name}

client = ${name}(base_url="${address(sdk)}", api_key="${key(hasKey)}")
${body?.stream ? `for event in client.${call}(${given}):\n    print(event)` : `answer = client.${call}(${given})\nprint(answer.${shownOf(sdk, body)})`}
`;
}

function nodeSdk(sdk: Sdk, { body, hasKey }: Call, path: string): string {
  const name = sdk.package === "openai" ? "OpenAI" : "Anthropic";
  const from = sdk.package === "openai" ? "openai" : "@anthropic-ai/sdk";
  const given = body ? JSON.stringify(body, null, 2) : sdk.id ? `"${parameter(path)}"` : "";
  return `import ${name} from "${from}";

const client = new ${name}({ baseURL: "${address(sdk)}", apiKey: "${key(hasKey)}" });
${
  body?.stream
    ? `for await (const event of await client.${sdk.call}(${given})) console.log(JSON.stringify(event));`
    : `const answer = await client.${sdk.call}(${given});\nconsole.log(answer.${shownOf(sdk, body)});`
}
`;
}

/** What of an answer is worth printing: a call has no text. */
function shownOf(sdk: Sdk, body: Call["body"]): string {
  if (!body?.tools) return sdk.shown;
  return sdk.shown.replace("message.content", "message").replace("output_text", "output");
}

function python({ method, path, body, hasKey }: Call): string {
  const headers = { ...(body && { "Content-Type": "application/json" }), ...(hasKey && { Authorization: "Bearer YOUR_KEY" }) };
  const given = [
    body ? `data=json.dumps(${literal(body, "    ")}).encode()` : "",
    Object.keys(headers).length ? `headers=${JSON.stringify(headers)}` : "",
    `method="${method}"`,
  ];
  return `${body ? "import json\n" : ""}from urllib.request import Request, urlopen

request = Request(
    "${base()}${path}",
    ${given.filter(Boolean).join(",\n    ")},
)
print(urlopen(request).read().decode())
`;
}

function node({ method, path, body, hasKey }: Call): string {
  const headers = { ...(body && { "Content-Type": "application/json" }), ...(hasKey && { Authorization: "Bearer YOUR_KEY" }) };
  const given = [
    `method: "${method}"`,
    Object.keys(headers).length ? `headers: ${JSON.stringify(headers)}` : "",
    body ? `body: JSON.stringify(${JSON.stringify(body, null, 2).replaceAll("\n", "\n  ")})` : "",
  ];
  return `const answer = await fetch("${base()}${path}", {
  ${given.filter(Boolean).join(",\n  ")},
});
console.log(await answer.text());
`;
}

/** A line of a batch's file. */
const lineOf = (model: string) =>
  JSON.stringify({ custom_id: "1", method: "POST", url: "/v1/chat/completions", body: { model, messages: HELLO } });

const uploads: Record<Language, (call: Call) => string> = {
  curl: ({ hasKey, model }) => `echo '${lineOf(model)}' |
  curl ${base()}/v1/files ${hasKey ? "-H 'Authorization: Bearer YOUR_KEY' " : ""}\\
  -F purpose=batch -F 'file=@-;filename=in.jsonl'`,
  Python: ({ hasKey, model }) => `from openai import OpenAI

client = OpenAI(base_url="${base()}/v1", api_key="${key(hasKey)}")
line = b"""${lineOf(model)}
"""
answer = client.files.create(file=("in.jsonl", line), purpose="batch")
print(answer.id)
`,
  Node: ({ hasKey, model }) => `const form = new FormData();
form.append("purpose", "batch");
form.append("file", new Blob([\`${lineOf(model)}\n\`]), "in.jsonl");
const answer = await fetch("${base()}/v1/files", {
  method: "POST",
${hasKey ? '  headers: { Authorization: "Bearer YOUR_KEY" },\n' : ""}  body: form,
});
console.log(await answer.text());
`,
};
