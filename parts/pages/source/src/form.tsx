// The fields of an answer's schema, one row each.
import { useState } from "preact/hooks";
import { type Field, fieldsOf, KINDS, kindOf, schemaFrom, schemaOf } from "./fields";
import { Icon } from "./icons";

export function Form({ schema, set }: { schema: string; set: (schema: string) => void }) {
  const fields = fieldsOf(schema);
  if (!fields) return <p class="note">This schema has more than a form shows. Write it as JSON.</p>;
  const put = (at: number, part: Partial<Field>) =>
    set(schemaOf(fields.map((each, index) => (index === at ? { ...each, ...part } : each))));
  const add = () => set(schemaOf([...fields, { name: unused(fields), schema: KINDS.text!, isRequired: true }]));
  return (
    <div class="fields-form">
      {fields.map((field, at) => (
        <Row
          key={at}
          field={field}
          isTaken={(name) => fields.some((each, index) => index !== at && each.name === name)}
          put={(part) => put(at, part)}
          remove={() => set(schemaOf(fields.filter((_, index) => index !== at)))}
        />
      ))}
      <button type="button" onClick={add}>
        Add a field
      </button>
    </div>
  );
}

/** A schema from one answer, or one call, as it should be. */
export function Example({ label, set }: { label: string; set: (schema: string) => void }) {
  const [told, setTold] = useState("");
  const read = (text: string) => {
    const schema = schemaFrom(text);
    if (schema) set(schema);
    setTold(schema ? "The schema follows this example; look at it in the form." : "This is not a JSON object yet.");
  };
  return (
    <label>
      {label}
      <textarea
        rows={6}
        class="code"
        spellcheck={false}
        placeholder='{"name": "Ada", "born": 1815}'
        onInput={(event) => read(event.currentTarget.value)}
      />
      <span role="status">{told}</span>
    </label>
  );
}

function unused(fields: Field[]): string {
  const names = new Set(fields.map((each) => each.name));
  let number = fields.length + 1;
  while (names.has(`field_${number}`)) number++;
  return `field_${number}`;
}

function Row(props: {
  field: Field;
  isTaken: (name: string) => boolean;
  put: (part: Partial<Field>) => void;
  remove: () => void;
}) {
  const { field, put } = props;
  const { name, schema } = field;
  const kind = kindOf(schema);
  return (
    <div class="field" role="group" aria-label={`Field ${name}`}>
      <input
        aria-label="Name"
        value={name}
        onChange={({ currentTarget: input }) => {
          const given = input.value.trim();
          if (given && !props.isTaken(given)) put({ name: given });
          else input.value = name; // two fields cannot share a name
        }}
      />
      <select
        aria-label="Kind"
        value={kind}
        onChange={(event) => {
          const { description } = schema;
          put({ schema: { ...KINDS[event.currentTarget.value]!, ...(description ? { description } : {}) } });
        }}
      >
        {kind === "" && <option value="">as in JSON</option>}
        {Object.keys(KINDS).map((each) => (
          <option key={each}>{each}</option>
        ))}
      </select>
      <button type="button" class="deed" aria-label={`Remove ${name}`} title="Remove" onClick={props.remove}>
        <Icon name="close" />
      </button>
      {kind === "one of" && (
        <input
          class="options"
          aria-label="Values"
          title="Values, separated by commas"
          value={(schema.enum as string[]).join(", ")}
          onChange={(event) => put({ schema: { ...schema, enum: valuesOf(event.currentTarget.value) } })}
        />
      )}
      <label class="check">
        <input
          type="checkbox"
          checked={field.isRequired}
          onChange={(event) => put({ isRequired: event.currentTarget.checked })}
        />
        <span>required</span>
      </label>
    </div>
  );
}

function valuesOf(text: string): string[] {
  const values = [...new Set(text.split(",").map((each) => each.trim()))].filter(Boolean);
  return values.length ? values : ["yes", "no"];
}
