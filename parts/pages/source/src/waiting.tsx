// Why nothing comes: shown while an answer is still, as the server tells it.
import { useEffect, useState } from "preact/hooks";
import { ApiError, getJSON, getText } from "./api";
import type { AssistantTurn } from "./conversation";
import { parse, value } from "./metrics";
import { now } from "./store";

const STILL_MS = 1200; // so long without a token is worth a look
const AGAIN_MS = 1000;

export function Waiting({ turn }: { turn: AssistantTurn }) {
  const hasBegun = turn.tokenIds.length > 0 || Boolean(turn.text);
  const [reason, setReason] = useState("");
  useEffect(() => {
    setReason("");
    let timer: ReturnType<typeof setTimeout>;
    let isOver = false;
    const look = async () => {
      const found = await reasonOf(hasBegun);
      if (isOver) return;
      setReason(found);
      timer = setTimeout(() => void look(), AGAIN_MS);
    };
    timer = setTimeout(() => void look(), STILL_MS);
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, [turn.tokenIds.length, turn.text.length, turn.reasoning.length]);
  if (reason)
    return (
      <p class="waiting" role="status">
        {reason}
      </p>
    );
  return hasBegun ? null : <p class="waiting">Waiting for the first token …</p>;
}

async function reasonOf(hasBegun: boolean): Promise<string> {
  const { apiKey } = now();
  try {
    await getJSON("v1/health/ready", apiKey);
  } catch (error) {
    if (!(error instanceof ApiError) || error.status === null) return "The server cannot be reached.";
    return hasBegun
      ? "The engine is restarting. The answer continues when it is back."
      : "The engine is restarting. The answer begins when it is back.";
  }
  if (hasBegun) return "";
  try {
    const sample = parse(await getText("v1/metrics", apiKey), 0);
    const waiting = value(sample, "engine_waiting_requests") ?? 0;
    return waiting ? `In the queue: ${value(sample, "engine_running_requests") ?? 0} requests run, ${waiting} wait.` : "";
  } catch {
    return ""; // this key may not read metrics
  }
}
