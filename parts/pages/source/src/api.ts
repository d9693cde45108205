// The server's API, as this page uses it. URLs are relative, so that a path prefix is no matter.

export interface ToolCall {
  id: string;
  name: string;
  arguments: string;
}

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  completion_tokens_details?: { reasoning_tokens?: number };
  prompt_tokens_details?: { cached_tokens?: number };
}

/** What a stream brings, piece by piece. */
export type Piece =
  | { kind: "reasoning" | "content"; text: string }
  | { kind: "call"; index: number; id?: string; name?: string; arguments?: string }
  | { kind: "finish"; reason: string }
  | { kind: "usage"; usage: Usage }
  | { kind: "ids"; ids: number[]; entries?: (TokenEntry | null)[] }
  | { kind: "restart" }
  | { kind: "begun"; id: string }
  | { kind: "event"; line: string };

/** A token, and how likely it was. */
export interface Rival {
  id: number;
  token: string;
  logprob: number;
}

export interface TokenEntry extends Rival {
  top_logprobs: Rival[];
}

/** An error as the server words it, or as the browser does when there was no answer. */
export class ApiError extends Error {
  constructor(
    message: string,
    readonly status: number | null,
    readonly param: string | null = null,
    readonly afterS: number | null = null, // when to try again, as Retry-After has it
  ) {
    super(message);
  }
}

/** The connection ended before the answer did. */
export class Cut extends ApiError {
  constructor() {
    super("The connection was lost.", null);
  }
}

/** An error as a person is shown it. */
export function worded(error: Error): string {
  if (!(error instanceof ApiError)) return error.message;
  const where = error.param && !error.message.includes(error.param) ? ` (${error.param})` : "";
  const key = error.status === 401 ? " Enter a key at the top of the page." : "";
  return `${error.message}${where}${key}`;
}

export interface Model {
  id: string;
  max_model_len?: number;
}

/** A batch, as `/v1/batches` has it. */
export interface Batch {
  id: string;
  status: string;
  endpoint: string;
  created_at: number;
  output_file_id: string | null;
  error_file_id: string | null;
  request_counts: { total: number; completed: number; failed: number };
  errors: { data: { code: string | null; line: number | null; message: string }[] } | null;
}

export async function getJSON<T>(path: string, key: string): Promise<T> {
  const answer = await ask(path, { headers: headers(key) });
  return (await answer.json()) as T;
}

export async function getText(path: string, key: string): Promise<string> {
  return (await ask(path, { headers: headers(key) })).text();
}

export async function postJSON<T>(path: string, body: unknown, key: string): Promise<T> {
  const answer = await ask(path, { method: "POST", headers: headers(key), body: JSON.stringify(body) });
  return (await answer.json()) as T;
}

export async function getBlob(path: string, key: string): Promise<Blob> {
  return (await ask(path, { headers: headers(key) })).blob();
}

/** Upload the requests of a batch; returns the file's id. */
export async function uploadBatch(file: File, key: string): Promise<string> {
  const body = new FormData();
  body.append("purpose", "batch");
  body.append("file", file);
  const answer = await ask("v1/files", { method: "POST", headers: key ? { Authorization: `Bearer ${key}` } : {}, body });
  return ((await answer.json()) as { id: string }).id;
}

/** Whatever the server answers, errors too; status 0 where it cannot be reached. `come` gets a stream as it grows. */
export async function sendText(
  method: string,
  path: string,
  body: string,
  key: string,
  come: (soFar: string) => void,
): Promise<{ status: number; text: string }> {
  try {
    const answer = await fetch(path, { method, headers: headers(key), body: body || undefined });
    if (!answer.headers.get("content-type")?.startsWith("text/event-stream"))
      return { status: answer.status, text: await answer.text() };
    let text = "";
    const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
    for (let piece = await reader.read(); !piece.done; piece = await reader.read()) come((text += piece.value));
    return { status: answer.status, text };
  } catch (error) {
    return { status: 0, text: String(error) };
  }
}

/** Yield the pieces of a streamed chat completion, its tokens too; throws ApiError. `server`: of this page, or an origin. */
export async function* streamChat(body: object, key: string, signal: AbortSignal, server = ""): AsyncGenerator<Piece> {
  const answer = await ask(`${server}v1/chat/completions`, {
    method: "POST",
    headers: headers(key),
    body: JSON.stringify({ ...body, return_token_ids: true }),
    signal,
  });
  let id: string | undefined;
  for await (const line of lines(answer)) {
    if (line.startsWith(": engine restarted")) yield { kind: "restart" };
    if (!line.startsWith("data: ")) continue;
    yield { kind: "event", line };
    if (line === "data: [DONE]") return;
    const chunk = JSON.parse(line.slice(6)) as Chunk;
    if (chunk.id && !id) yield { kind: "begun", id: (id = chunk.id) };
    yield* pieces(chunk);
  }
  throw new Cut();
}

/** Have an answer that is streamed end its reasoning. Nothing is wrong where it has ended by itself. */
export async function endReasoning(id: string, key: string): Promise<void> {
  try {
    await postJSON(`v1/chat/completions/${encodeURIComponent(id)}/control`, { action: "reasoning_end" }, key);
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 409) throw error;
  }
}

function headers(key: string): HeadersInit {
  const json = { "Content-Type": "application/json" };
  return key ? { ...json, Authorization: `Bearer ${key}` } : json;
}

async function ask(path: string, init: RequestInit): Promise<Response> {
  let answer: Response;
  try {
    answer = await fetch(path, init);
  } catch (error) {
    if ((error as Error).name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached. Is it still running?", null);
  }
  if (answer.ok) return answer;
  const after = Number.parseFloat(answer.headers.get("retry-after") ?? ""); // a date is not read
  throw told(await answer.text(), answer.status, after >= 0 ? after : null);
}

const GATEWAYS = new Set([502, 503, 504]);

function told(text: string, status: number, afterS: number | null): ApiError {
  try {
    const { error } = JSON.parse(text) as { error: { message: string; param?: string | null } };
    return new ApiError(error.message, status, error.param ?? null, afterS);
  } catch {
    if (GATEWAYS.has(status)) return new ApiError(`The gateway in front of the server answered ${status}.`, status, null, afterS);
    return new ApiError(`HTTP ${status}: ${text.slice(0, 300)}`, status);
  }
}

async function* lines(answer: Response): AsyncGenerator<string> {
  const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch((error: Error) => {
      throw error.name === "AbortError" ? error : new Cut();
    });
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop()!;
    yield* parts.map((part) => part.trimEnd()).filter(Boolean);
  }
}

interface Delta {
  reasoning?: string;
  content?: string;
  tool_calls?: { index: number; id?: string; function?: { name?: string; arguments?: string } }[];
}

interface Chunk {
  id?: string;
  choices?: { delta: Delta; finish_reason?: string | null; token_ids?: number[]; token_logprobs?: (TokenEntry | null)[] }[];
  usage?: Usage | null;
  error?: { message: string; param?: string | null };
}

function* pieces(chunk: Chunk): Generator<Piece> {
  if (chunk.error) throw new ApiError(chunk.error.message, null, chunk.error.param ?? null);
  for (const { delta, finish_reason, token_ids, token_logprobs } of chunk.choices ?? []) {
    if (token_ids) yield { kind: "ids", ids: token_ids, entries: token_logprobs };
    if (delta.reasoning) yield { kind: "reasoning", text: delta.reasoning };
    if (delta.content) yield { kind: "content", text: delta.content };
    for (const call of delta.tool_calls ?? []) {
      yield {
        kind: "call",
        index: call.index,
        id: call.id,
        name: call.function?.name,
        arguments: call.function?.arguments,
      };
    }
    if (finish_reason) yield { kind: "finish", reason: finish_reason };
  }
  if (chunk.usage) yield { kind: "usage", usage: chunk.usage };
}
