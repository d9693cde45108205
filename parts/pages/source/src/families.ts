// The same request for other APIs and libraries, as Python.
import type { Body } from "./conversation";
import { base } from "./server";
import { EXTENSIONS, KEY, literal, taken } from "./snippets";

interface Call {
  id: string;
  function: { name: string; arguments: string };
}
interface Message {
  role: string;
  content: string | null;
  tool_calls?: Call[];
  tool_call_id?: string;
}
interface Tool {
  type: string;
  function?: { name: string; description?: string; parameters?: object; strict?: boolean };
}

const messagesOf = (body: Body) => body.messages as Message[];
const toolsOf = (body: Body) => (body.tools ?? []) as Tool[];
const systemOf = (body: Body) => messagesOf(body).find((each) => each.role === "system")?.content;
const saidIn = (body: Body) => messagesOf(body).filter((each) => each.role !== "system");
const formatOf = (body: Body) => (body.response_format as { json_schema: { schema: object } } | undefined)?.json_schema;
const key = (hasKey: boolean) => (hasKey ? KEY : "none");

/** Arguments of a Python call, one a line; what is undefined is left out. */
const args = (given: Body) =>
  Object.entries(given)
    .filter(([, value]) => value !== undefined)
    .map(([name, value]) => `    ${name}=${literal(value, "    ")},\n`)
    .join("");

export function responses(body: Body, hasKey: boolean): string {
  const input = saidIn(body).flatMap(({ role, content, tool_calls = [], tool_call_id }): object[] => {
    if (role === "tool") return [{ type: "function_call_output", call_id: tool_call_id, output: content }];
    const said = content ? [{ role, content }] : [];
    const calls = tool_calls.map(({ id, function: call }) => ({ type: "function_call", call_id: id, ...call }));
    return [...said, ...calls];
  });
  const format = formatOf(body);
  const tools = toolsOf(body).map(({ type, function: called }) => ({ type, ...called }));
  const given = args({
    model: body.model,
    instructions: systemOf(body) ?? undefined,
    input,
    reasoning: { effort: body.reasoning_effort },
    ...taken(body, ["temperature", "top_p"]),
    max_output_tokens: body.max_completion_tokens,
    tools: tools.length ? tools : undefined,
    text: format && { format: { type: "json_schema", ...format } },
  });
  return `from openai import OpenAI

client = OpenAI(base_url="${base()}/v1", api_key="${key(hasKey)}")
stream = client.responses.create(
    stream=True,
${given})
for event in stream:
    if event.type in ("response.output_text.delta", "response.function_call_arguments.delta"):
        print(event.delta, end="", flush=True)
`;
}

const MAX_TOKENS = 4096; // Anthropic's API wants a number

export function messages(body: Body, hasKey: boolean): string {
  const said = saidIn(body).map(({ role, content, tool_calls = [], tool_call_id }) => {
    if (role === "tool") return { role: "user", content: [{ type: "tool_result", tool_use_id: tool_call_id, content }] };
    if (!tool_calls.length) return { role, content };
    const calls = tool_calls.map(({ id, function: call }) => ({
      type: "tool_use",
      id,
      name: call.name,
      input: JSON.parse(call.arguments || "{}") as object,
    }));
    return { role, content: [...(content ? [{ type: "text", text: content }] : []), ...calls] };
  });
  const tools = toolsOf(body).flatMap(({ function: called }) =>
    called ? [{ name: called.name, description: called.description ?? "", input_schema: called.parameters ?? {} }] : [],
  );
  const format = formatOf(body);
  const own = taken(body, ["temperature", "top_p", "top_k"]); // newer versions of the library take these so only
  const given = args({
    model: body.model,
    max_tokens: body.max_completion_tokens ?? MAX_TOKENS,
    system: systemOf(body) ?? undefined,
    messages: said,
    stop_sequences: body.stop,
    tools: tools.length ? tools : undefined,
    output_config: {
      effort: body.reasoning_effort,
      ...(format && { format: { type: "json_schema", schema: format.schema } }),
    },
    extra_body: Object.keys(own).length ? own : undefined,
  });
  return `from anthropic import Anthropic

client = Anthropic(base_url="${base()}", api_key="${key(hasKey)}")
with client.messages.stream(
${given}) as stream:
    for text in stream.text_stream:
        print(text, end="", flush=True)
    print(stream.get_final_message().stop_reason)
`;
}

export function langChain(body: Body, hasKey: boolean): string {
  const { model, messages, stream: _, stream_options: __, tools, response_format, ...rest } = body;
  const own = taken(rest, [...EXTENSIONS]);
  const plain = Object.fromEntries(Object.entries(rest).filter(([name]) => !(name in own)));
  const made = args({
    model,
    base_url: `${base()}/v1`,
    api_key: key(hasKey),
    ...plain,
    extra_body: Object.keys(own).length ? own : undefined,
  });
  const bound = args({ tools, response_format });
  return `from langchain_openai import ChatOpenAI

model = ChatOpenAI(
${made})${bound && `.bind(\n${bound})`}
for chunk in model.stream(${literal(messages, "")}):
    print(chunk.text or "", end="", flush=True)
`;
}
