// An answer that failed: why, and the next step; where the server names a time, it is asked again then.
import { useEffect, useState } from "preact/hooks";
import type { AssistantTurn } from "./conversation";

export function Failed({ turn, canRetry, retry }: { turn: AssistantTurn; canRetry: boolean; retry: () => void }) {
  const { error, againAt } = turn;
  const [waits, setWaits] = useState(() => againAt !== null && againAt > Date.now()); // not of another day
  return (
    <div class="error">
      <p role="alert">{error}</p>
      {canRetry && waits && <Countdown at={againAt!} retry={retry} cancel={() => setWaits(false)} />}
      {canRetry && !waits && (
        <button type="button" onClick={retry}>
          Try again
        </button>
      )}
    </div>
  );
}

function Countdown({ at, retry, cancel }: { at: number; retry: () => void; cancel: () => void }) {
  const secondsLeft = () => Math.ceil((at - Date.now()) / 1000);
  const [left, setLeft] = useState(secondsLeft);
  useEffect(() => {
    const timer = setInterval(() => (secondsLeft() > 0 ? setLeft(secondsLeft()) : retry()), 200);
    return () => clearInterval(timer);
  }, [at]);
  return (
    <p>
      Try again in {left} s{" "}
      <button type="button" onClick={retry}>
        Now
      </button>{" "}
      <button type="button" onClick={cancel}>
        Cancel
      </button>
    </p>
  );
}
