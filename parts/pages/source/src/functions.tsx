// Functions of the user's own, a form for each: name, what it does, and its arguments.
import { type Call, functionsOf, newFunction, toolsOf } from "./fields";
import { Example, Form } from "./form";

export function Functions({ tools, set }: { tools: string; set: (tools: string) => void }) {
  const found = functionsOf(tools);
  if (!found) return <p class="note">These tools have more than a form shows. Write them as JSON.</p>;
  const put = (at: number, part: Partial<Call>) =>
    set(toolsOf(found.map((each, index) => (index === at ? { ...each, ...part } : each))));
  return (
    <div class="fields-form">
      {found.map((each, at) => (
        <fieldset key={at}>
          <legend>{each.name}</legend>
          <label>
            Function's name
            <input
              value={each.name}
              onChange={({ currentTarget: input }) => {
                if (/^[\w-]{1,64}$/.test(input.value)) put(at, { name: input.value });
                else input.value = each.name; // the API takes letters, digits, _ and -
              }}
            />
          </label>
          <label>
            What it does
            <input value={each.description} onChange={(event) => put(at, { description: event.currentTarget.value })} />
          </label>
          <Form
            schema={JSON.stringify(each.parameters)}
            set={(schema) => put(at, { parameters: JSON.parse(schema) as object })}
          />
          <details>
            <summary>Arguments from an example</summary>
            <Example label="The arguments of one call" set={(schema) => put(at, { parameters: JSON.parse(schema) as object })} />
          </details>
          <button type="button" onClick={() => set(toolsOf(found.filter((_, index) => index !== at)))}>
            Remove {each.name}
          </button>
        </fieldset>
      ))}
      <button type="button" onClick={() => set(toolsOf([...found, newFunction(found)]))}>
        Add a function
      </button>
    </div>
  );
}
