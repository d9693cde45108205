// Batches: a file of requests is uploaded and run, how far each is, and its results.
import { useEffect, useRef, useState } from "preact/hooks";
import { type Batch, getBlob, getJSON, postJSON, uploadBatch, worded } from "./api";
import { counted } from "./figures";
import { Icon } from "./icons";

const AGAIN_MS = 2000;
const RUNNING = ["validating", "in_progress", "finalizing", "cancelling"];
const CHAT = "/v1/chat/completions";
const SHOWN = 5; // faults of a batch

export function Batches({ apiKey, close }: { apiKey: string; close: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [list, setList] = useState<Batch[] | null>(null);
  const [error, setError] = useState("");
  const [round, setRound] = useState(0);
  const again = () => setRound((count) => count + 1);
  useEffect(() => dialog.current!.showModal(), []);
  useEffect(() => {
    let isOver = false;
    let timer: ReturnType<typeof setTimeout>;
    const look = async () => {
      try {
        const { data } = await getJSON<{ data: Batch[] }>("v1/batches?limit=20", apiKey);
        if (isOver) return;
        setList(data);
        setError("");
        if (data.some((each) => RUNNING.includes(each.status))) timer = setTimeout(() => void look(), AGAIN_MS);
      } catch (failure) {
        if (!isOver) setError(worded(failure as Error));
      }
    };
    void look();
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, [apiKey, round]);
  return (
    <dialog
      ref={dialog}
      class="details batches"
      aria-label="Batches"
      onClose={close}
      onClick={(event) => event.target === dialog.current && dialog.current!.close()}
    >
      <button type="button" class="close" aria-label="Close" onClick={() => dialog.current!.close()}>
        <Icon name="close" />
      </button>
      <h2>Batches</h2>
      <Begin apiKey={apiKey} done={again} />
      {error && (
        <p class="error" role="alert">
          {error}
        </p>
      )}
      {list?.length === 0 && <p class="note">There are none yet.</p>}
      <ul>
        {list?.map((each) => (
          <Row key={each.id} of={each} apiKey={apiKey} again={again} />
        ))}
      </ul>
    </dialog>
  );
}

function Begin({ apiKey, done }: { apiKey: string; done: () => void }) {
  const field = useRef<HTMLInputElement>(null);
  const [told, setTold] = useState("");
  const send = async (file: File | undefined) => {
    if (!file) return;
    setTold(`Uploading ${file.name} …`);
    try {
      const endpoint = await endpointOf(file);
      const id = await uploadBatch(file, apiKey);
      await postJSON("v1/batches", { input_file_id: id, endpoint, completion_window: "24h" }, apiKey);
      setTold("");
      done();
    } catch (failure) {
      setTold(worded(failure as Error));
    }
  };
  return (
    <p>
      <button type="button" class="main" onClick={() => field.current!.click()}>
        Run a file
      </button>{" "}
      <span class="note">JSONL with one request per line, in OpenAI's batch format. They run when the server has room.</span>
      <input
        ref={field}
        type="file"
        accept=".jsonl,application/jsonl"
        aria-label="File of requests"
        hidden
        onChange={(event) => void send(event.currentTarget.files?.[0])}
      />
      {told && <span role="status"> {told}</span>}
    </p>
  );
}

/** The route of the first request; the server says what is wrong with a file that has none. */
async function endpointOf(file: File): Promise<string> {
  const [line] = (await file.slice(0, 1 << 20).text()).split("\n", 1);
  try {
    return (JSON.parse(line!) as { url?: string }).url ?? CHAT;
  } catch {
    return CHAT;
  }
}

function Row({ of, apiKey, again }: { of: Batch; apiKey: string; again: () => void }) {
  const [error, setError] = useState("");
  const { total, completed, failed } = of.request_counts;
  const isRunning = RUNNING.includes(of.status);
  const attempt = (work: Promise<unknown>) => work.then(again, (failure: Error) => setError(worded(failure)));
  const files = { Results: of.output_file_id, Errors: of.error_file_id };
  return (
    <li>
      <strong>{of.status.replace("_", " ")}</strong>{" "}
      <span class="note">
        {new Date(of.created_at * 1000).toLocaleString()}, {of.endpoint}
        <br />
        {of.id}
      </span>
      {total > 0 && <progress aria-label={`Requests of ${of.id}`} max={total} value={completed + failed} />}
      <p class="deeds">
        {total > 0 && `${counted(completed + failed)} of ${counted(total)} requests`}
        {failed > 0 && `, ${counted(failed)} failed`}{" "}
        {isRunning && of.status !== "cancelling" && (
          <button type="button" onClick={() => void attempt(postJSON(`v1/batches/${of.id}/cancel`, {}, apiKey))}>
            Cancel
          </button>
        )}
        {Object.entries(files).map(
          ([name, id]) =>
            id && (
              <button
                key={name}
                type="button"
                onClick={() => void attempt(save(id, `${of.id}-${name.toLowerCase()}.jsonl`, apiKey))}
              >
                {name}
              </button>
            ),
        )}
      </p>
      {of.errors?.data.slice(0, SHOWN).map((each) => (
        <p key={`${each.line} ${each.code}`} class="error">
          {each.line !== null && `Line ${each.line}: `}
          {each.message}
        </p>
      ))}
      {error && (
        <p class="error" role="alert">
          {error}
        </p>
      )}
    </li>
  );
}

async function save(id: string, name: string, apiKey: string): Promise<void> {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await getBlob(`v1/files/${id}/content`, apiKey));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
