// Where a message is written. Each conversation has its own draft.
import { useEffect, useRef } from "preact/hooks";

export function Composer(props: {
  draft: string;
  setDraft: (text: string) => void;
  isReady: boolean;
  isBusy: boolean;
  send: (text: string) => void;
  stop: () => void;
}) {
  const { draft } = props;
  const field = useRef<HTMLTextAreaElement>(null);
  const canSend = props.isReady && !props.isBusy && draft.trim() !== "";
  useEffect(() => {
    if (!props.isBusy) field.current?.focus({ preventScroll: true });
  }, [props.isBusy, props.isReady]);
  const send = () => {
    if (!canSend) return;
    props.setDraft("");
    props.send(draft);
  };
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <textarea
        ref={field}
        rows={2}
        dir="auto"
        aria-label="Message"
        placeholder="Message (Enter sends, Shift-Enter breaks the line)"
        value={draft}
        onInput={(event) => props.setDraft(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Escape" && props.isBusy) props.stop();
          if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
          event.preventDefault();
          send();
        }}
      />
      {props.isBusy ? (
        <button type="button" class="main" onClick={props.stop}>Stop</button>
      ) : (
        <button type="submit" class="main" disabled={!canSend}>Send</button>
      )}
    </form>
  );
}
