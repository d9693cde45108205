// What the server serves, and whether it wants a key.
import { ApiError, getJSON, worded, type Model } from "./api";

export interface Server {
  model: Model | null;
  needsKey: boolean;
  message: string;
}

export const CONNECTING: Server = { model: null, needsKey: false, message: "Connecting …" };

async function look(key: string): Promise<Server> {
  try {
    await getJSON("v1/health/ready", key); // 503 with the reason, and how far a start is
    const { data } = await getJSON<{ data: Model[] }>("v1/models", key);
    return { model: data[0] ?? null, needsKey: false, message: "Nothing is served." };
  } catch (error) {
    const needsKey = error instanceof ApiError && error.status === 401;
    const message = needsKey ? (key ? "This key is not known." : "A key is needed.") : worded(error as Error);
    return { model: null, needsKey, message };
  }
}

const AGAIN_MS = 3000;

/** Tell what is served, again and again until something is; returns what ends it. */
export function watch(key: string, tell: (server: Server) => void): () => void {
  let isOver = false;
  const ask = async () => {
    const found = await look(key);
    if (isOver) return;
    tell(found);
    if (!found.model && !found.needsKey) setTimeout(() => isOver || void ask(), AGAIN_MS);
  };
  void ask();
  return () => {
    isOver = true;
  };
}

/** This server's address as its clients need it, whatever prefix it stands behind. */
export function base(): string {
  return new URL(".", document.baseURI).href.replace(/\/$/, "");
}
