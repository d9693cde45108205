// What keys do.
import { useEffect, useRef } from "preact/hooks";
import { Icon } from "./icons";

const KEYS: [string, string][] = [
  ["Enter", "send; while an answer comes, queue"],
  ["Shift Enter", "another line"],
  ["↑ in an empty message", "edit the last question"],
  ["Escape", "stop the answer"],
  ["Ctrl K", "search the conversations"],
  ["Ctrl Shift O", "new chat"],
  ["?", "this list"],
];

export function Keys({ close }: { close: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current!.showModal(), []);
  return (
    <dialog
      ref={dialog}
      class="details keys"
      aria-label="Keys"
      onClose={close}
      onClick={(event) => event.target === dialog.current && dialog.current!.close()}
    >
      <button type="button" class="close" aria-label="Close" onClick={() => dialog.current!.close()}>
        <Icon name="close" />
      </button>
      <h2>Keys</h2>
      <dl>
        {KEYS.map(([key, deed]) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{deed}</dd>
          </div>
        ))}
      </dl>
    </dialog>
  );
}
