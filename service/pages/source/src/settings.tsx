// How to answer: the panel beside the conversation.
import type { Settings } from "./conversation";
import { TOOLS } from "./tools";

type Change = (part: Partial<Settings>) => void;

export function SettingsPanel({ settings, change }: { settings: Settings; change: Change }) {
  return (
    <form class="settings" aria-label="Settings" onSubmit={(event) => event.preventDefault()}>
      <label>
        Instructions
        <textarea
          rows={3}
          placeholder="You are …"
          value={settings.system}
          onInput={(event) => change({ system: event.currentTarget.value })}
        />
      </label>
      <label>
        Reasoning effort
        <select
          value={settings.effort}
          onChange={(event) => change({ effort: event.currentTarget.value as Settings["effort"] })}
        >
          <option>low</option>
          <option>medium</option>
          <option>high</option>
        </select>
      </label>
      <div class="pair">
        <NumberField label="Temperature" value={settings.temperature} set={(temperature) => change({ temperature })} />
        <NumberField label="Top p" value={settings.topP} set={(topP) => change({ topP })} />
        <NumberField label="Seed" value={settings.seed} set={(seed) => change({ seed })} />
        <NumberField label="Max tokens" value={settings.maxTokens} set={(maxTokens) => change({ maxTokens })} />
      </div>
      <Tools settings={settings} change={change} />
      <Structure settings={settings} change={change} />
    </form>
  );
}

function NumberField(props: { label: string; value: string; set: (value: string) => void }) {
  return (
    <label>
      {props.label}
      <input
        type="text"
        inputMode="decimal"
        placeholder="default"
        value={props.value}
        onInput={(event) => props.set(event.currentTarget.value)}
      />
    </label>
  );
}

function Tools({ settings, change }: { settings: Settings; change: Change }) {
  const toggle = (name: string, isOn: boolean) =>
    change({ tools: isOn ? [...settings.tools, name] : settings.tools.filter((each) => each !== name) });
  return (
    <fieldset>
      <legend>Tools</legend>
      {TOOLS.map((tool) => (
        <label class="check" key={tool.name}>
          <input
            type="checkbox"
            checked={settings.tools.includes(tool.name)}
            onChange={(event) => toggle(tool.name, event.currentTarget.checked)}
          />
          {tool.title}
        </label>
      ))}
      <label class="check">
        <input
          type="checkbox"
          checked={settings.runsTools}
          onChange={(event) => change({ runsTools: event.currentTarget.checked })}
        />
        Run these automatically
      </label>
      <label>
        More tools, as JSON for the API
        <textarea
          rows={3}
          class="code"
          placeholder='[{"type": "function", "function": {"name": …}}]'
          value={settings.ownTools}
          onInput={(event) => change({ ownTools: event.currentTarget.value })}
        />
      </label>
    </fieldset>
  );
}

function Structure({ settings, change }: { settings: Settings; change: Change }) {
  return (
    <fieldset>
      <legend>Structured output</legend>
      <label class="check">
        <input
          type="checkbox"
          checked={settings.usesSchema}
          onChange={(event) => change({ usesSchema: event.currentTarget.checked })}
        />
        Answer by this JSON Schema
      </label>
      {settings.usesSchema && (
        <>
          <label>
            Schema
            <textarea
              rows={10}
              class="code"
              spellcheck={false}
              value={settings.schema}
              onInput={(event) => change({ schema: event.currentTarget.value })}
            />
          </label>
          <p class="note">{readable(settings.schema)}</p>
        </>
      )}
    </fieldset>
  );
}

function readable(schema: string): string {
  try {
    JSON.parse(schema);
    return "Valid JSON.";
  } catch (error) {
    return (error as Error).message;
  }
}
