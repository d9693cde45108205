// Every route, with an example that runs and the fields it takes and gives.
import { useEffect, useState } from "preact/hooks";
import { getJSON, sendText, worded } from "./api";
import { CopyButton } from "./copy";
import { type Call, code, LANGUAGES, type Language, takesFile } from "./examples";
import { marked } from "./marked";
import { type Document, type Field, fieldsOf, grouped, nameOf, type Operation, type Schema, titleOf, typeOf } from "./openapi";

const MAX_DEPTH = 4;

export function Routes({ apiKey, model }: { apiKey: string; model: string }) {
  const [document, setDocument] = useState<Document | null>(null);
  const [error, setError] = useState("");
  useEffect(() => {
    getJSON<Document>("openapi.json", apiKey).then(
      (found) => {
        setDocument(found);
        setError("");
      },
      (failure: Error) => setError(worded(failure)),
    );
  }, [apiKey]);
  return (
    <section id="routes" aria-labelledby="routes-title">
      <h2 id="routes-title">Routes</h2>
      <p class="note">
        Fields of request and response, from <a href="openapi.json">openapi.json</a>. Unknown fields are refused by name.
      </p>
      {error && (
        <p class="error" role="alert">
          {error}
        </p>
      )}
      {document &&
        grouped(document).map(([group, operations]) => (
          <div key={group} class="group">
            <h3>{group}</h3>
            {operations.map((each) => (
              <Route key={`${each.method} ${each.path}`} of={each} document={document} apiKey={apiKey} model={model} />
            ))}
          </div>
        ))}
    </section>
  );
}

function Route(props: { of: Operation; document: Document; apiKey: string; model: string }) {
  const { of, document } = props;
  const [isOpen, setIsOpen] = useState(false);
  return (
    <details class="route" onToggle={(event) => setIsOpen(event.currentTarget.open)}>
      <summary>
        <span class={`method ${of.method}`}>{of.method}</span> <code>{of.path}</code>{" "}
        <span class="says">{marked(firstSentence(of.description))}</span>
      </summary>
      {isOpen && (
        <>
          <p>{marked(of.description)}</p>
          <Example key={props.model} of={of} apiKey={props.apiKey} model={props.model} />
          {of.parameters.length > 0 && <Fields title="Parameters" fields={of.parameters} document={document} depth={0} />}
          {of.request && <Shape title="Body" schema={of.request} document={document} />}
          {of.answer && <Shape title="Answer" schema={of.answer} document={document} />}
        </>
      )}
    </details>
  );
}

const firstSentence = (text: string) => text.split(/[;.:](?:\s|$)/)[0]!;

function Example({ of, apiKey, model }: { of: Operation; apiKey: string; model: string }) {
  const [language, setLanguage] = useState<Language>("curl");
  const [draft, setDraft] = useState(() => written(Object.values(of.examples)[0]));
  const [answer, setAnswer] = useState("");
  const names = Object.keys(of.examples);
  const body = read(draft);
  const call: Call = { method: of.method, path: of.path + of.query, body, hasKey: Boolean(apiKey), model };
  const canRun = !of.path.includes("{") && !takesFile(of.method, of.path) && (!draft || body !== null);
  const run = async () => {
    const began = performance.now();
    setAnswer("…");
    const { status, text } = await sendText(of.method, (of.path + of.query).slice(1), draft, apiKey, setAnswer);
    setAnswer(`${status} after ${(performance.now() - began).toFixed(0)} ms\n\n${pretty(text)}`);
  };
  return (
    <div class="example">
      {names.length > 1 && (
        <label class="choice">
          Example
          <select onChange={(event) => setDraft(written(of.examples[event.currentTarget.value]))}>
            {names.map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </label>
      )}
      {draft && (
        <label>
          Request body (editable)
          <textarea
            class="code"
            rows={rowsOf(draft)}
            spellcheck={false}
            value={draft}
            onInput={(event) => setDraft(event.currentTarget.value)}
          />
        </label>
      )}
      {draft && !body && (
        <p class="error" role="alert">
          The body is not a JSON object.
        </p>
      )}
      <div class="tabs" role="group" aria-label="Language">
        {LANGUAGES.map((each) => (
          <button key={each} type="button" aria-pressed={each === language} onClick={() => setLanguage(each)}>
            {each}
          </button>
        ))}
        {canRun && (
          <button type="button" class="main" onClick={() => void run()}>
            Run here
          </button>
        )}
      </div>
      <div class={answer ? "beside" : ""}>
        <pre tabIndex={0} aria-label={`${of.method} ${of.path} as ${language}`}>
          <code>{code(language, call)}</code>
          <CopyButton class="copy" text={() => code(language, call)}>
            Copy
          </CopyButton>
        </pre>
        {answer && (
          <pre tabIndex={0} class="ran" role="status" aria-label="Answer">
            <code>{answer}</code>
          </pre>
        )}
      </div>
    </div>
  );
}

/** All of an example, but no more than half a screen. */
const rowsOf = (text: string) => Math.min(text.split("\n").length, 20);

const written = (body?: object) => (body ? JSON.stringify(body, null, 2) : "");

function read(text: string): Record<string, unknown> | null {
  try {
    const found: unknown = JSON.parse(text);
    return typeof found === "object" && !Array.isArray(found) ? (found as Record<string, unknown> | null) : null;
  } catch {
    return null;
  }
}

function pretty(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function Shape({ title, schema, document }: { title: string; schema: Schema; document: Document }) {
  const fields = fieldsOf(schema, document);
  if (!fields.length)
    return (
      <p class="note">
        {title}: {typeOf(schema)}
      </p>
    );
  return <Fields title={title} fields={fields} document={document} depth={0} />;
}

function Fields(props: { title: string; fields: Field[]; document: Document; depth: number }) {
  return (
    <table class="fields">
      <caption>{props.title}</caption>
      <tbody>
        {props.fields.map((field) => (
          <tr key={field.name}>
            <th scope="row">
              <code>{field.name}</code>
              {field.isRequired && <span class="required"> required</span>}
            </th>
            <td>
              <span class="type">{field.type}</span> {marked(field.description)}
              {props.depth < MAX_DEPTH &&
                field.inner.map((schema) => (
                  <Inner key={nameOf(schema)} schema={schema} document={props.document} depth={props.depth + 1} />
                ))}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

/** Drawn when it is opened: schemas hold themselves. */
function Inner({ schema, document, depth }: { schema: Schema; document: Document; depth: number }) {
  const [isOpen, setIsOpen] = useState(false);
  return (
    <details onToggle={(event) => setIsOpen(event.currentTarget.open)}>
      <summary>{titleOf(schema)}</summary>
      {isOpen && <Fields title={titleOf(schema)} fields={fieldsOf(schema, document)} document={document} depth={depth} />}
    </details>
  );
}
