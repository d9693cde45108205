// What the server serves and how it is, asked every few seconds.
import { ApiError, getJSON, type Model, worded } from "./api";

/** What runs, and why, as `/v1/metadata` has it. */
export interface Metadata {
  version: string;
  modelInfo: { shortName: string; modelUrl: string }[];
  selectedModelProfileId: string;
  licenseInfo: { name: string; url: string } | null;
  description: string;
  profile: Profile | null;
  tools: string[]; // built-in ones that are connected
  defaults: { temperature: number; top_p: number };
  may_kill_engine: boolean;
  compare_origins: string[]; // other servers that this page may ask
}

export interface Profile {
  name: string;
  engine: string;
  precision: string;
  goal: string;
  hardware: string;
  num_devices: number;
  replicas: number;
  max_model_len: number;
  status: string;
  source: string;
  reason: string;
  notes: string[];
}

/** What one engine runs on, for a person. */
export function hardwareOf({ hardware, num_devices }: Profile): string {
  return hardware === "cpu" ? "CPU" : `${num_devices} GPU${num_devices > 1 ? "s" : ""} (${hardware})`;
}

export interface Server {
  state: "connecting" | "ready" | "waiting" | "gone";
  model: Model | null; // the last one that was seen
  metadata: Metadata | null; // where the key may read it
  needsKey: boolean;
  message: string; // the state in words
}

export const CONNECTING: Server = { state: "connecting", model: null, metadata: null, needsKey: false, message: "Connecting …" };

/** Without the licence's text, which is larger than all the rest. */
export const METADATA = "v1/metadata?license_text=false";

const AGAIN_MS = 5000;
const SOON_MS = 1000; // while it is not ready: an answer that goes on shows that it is

async function look(key: string, before: Server): Promise<Server> {
  try {
    await getJSON("v1/health/ready", "");
  } catch (error) {
    const isThere = error instanceof ApiError && error.status !== null;
    const message = isThere ? worded(error) : "The server cannot be reached.";
    return { ...before, state: isThere ? "waiting" : "gone", message };
  }
  if (before.state === "ready") return before;
  try {
    await getJSON("v1/health/ready", key); // 503 with the reason, and how far a start is
    const { data } = await getJSON<{ data: Model[] }>("v1/models", key);
    const metadata = await getJSON<Metadata>(METADATA, key).catch(() => null);
    return { state: "ready", model: data[0] ?? null, metadata, needsKey: false, message: data[0]?.id ?? "No model is served." };
  } catch (error) {
    const needsKey = error instanceof ApiError && error.status === 401;
    const message = needsKey ? (key ? "This key is not known." : "A key is needed.") : worded(error as Error);
    return { state: "waiting", model: null, metadata: null, needsKey, message };
  }
}

/** Tell how the server is, every few seconds and when the page is looked at; returns what ends it. */
export function watch(key: string, tell: (server: Server) => void): () => void {
  let isOver = false;
  let found = CONNECTING;
  let timer: ReturnType<typeof setTimeout>;
  const ask = async () => {
    clearTimeout(timer);
    const next = document.hidden && found.state === "ready" ? found : await look(key, found);
    if (isOver) return;
    if (next !== found) tell((found = next));
    if (!next.needsKey) timer = setTimeout(() => void ask(), next.state === "ready" ? AGAIN_MS : SOON_MS);
  };
  const again = () => void ask();
  void ask();
  addEventListener("focus", again);
  return () => {
    isOver = true;
    clearTimeout(timer);
    removeEventListener("focus", again);
  };
}

/** This server's address as its clients need it, whatever prefix it stands behind. */
export function base(): string {
  return new URL(".", document.baseURI).href.replace(/\/$/, "");
}
