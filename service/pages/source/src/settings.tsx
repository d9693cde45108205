// How to answer: the panel beside the conversation.
import { type Settings, wrong } from "./conversation";
import { Presets } from "./presets";
import { useStore } from "./store";
import { TOOLS } from "./tools";

type Change = (part: Partial<Settings>) => void;

export function SettingsPanel({ settings, change }: { settings: Settings; change: Change }) {
  return (
    <form class="settings" aria-label="Settings" onSubmit={(event) => event.preventDefault()}>
      <Presets settings={settings} change={change} />
      <label>
        Instructions
        <textarea
          rows={3}
          placeholder="You are …"
          value={settings.system}
          onInput={(event) => change({ system: event.currentTarget.value })}
        />
      </label>
      <Sampling settings={settings} change={change} />
      <Tools settings={settings} change={change} />
      <Structure settings={settings} change={change} />
    </form>
  );
}

/** Effort and numbers; also for each side of a comparison. */
export function Sampling({ settings, change }: { settings: Settings; change: Change }) {
  const server = useStore((all) => all.server);
  const defaults = server.metadata?.defaults ?? { temperature: 1, top_p: 1 };
  return (
    <>
      <label>
        Reasoning effort
        <select value={settings.effort} onChange={(event) => change({ effort: event.currentTarget.value as Settings["effort"] })}>
          <option>low</option>
          <option>medium</option>
          <option>high</option>
        </select>
      </label>
      <div class="pair">
        <NumberField
          label="Temperature"
          name="temperature"
          hint={String(defaults.temperature)}
          value={settings.temperature}
          set={(temperature) => change({ temperature })}
        />
        <NumberField
          label="Top p"
          name="top_p"
          hint={String(defaults.top_p)}
          value={settings.topP}
          set={(topP) => change({ topP })}
        />
        <NumberField label="Seed" name="seed" hint="random" value={settings.seed} set={(seed) => change({ seed })} />
        <NumberField
          label="Max tokens"
          name="max_completion_tokens"
          hint={server.model?.max_model_len?.toLocaleString("en") ?? "all that fits"}
          value={settings.maxTokens}
          set={(maxTokens) => change({ maxTokens })}
        />
      </div>
      <label class="check">
        <input
          type="checkbox"
          checked={settings.probabilities}
          onChange={(event) => change({ probabilities: event.currentTarget.checked })}
        />
        Token probabilities
      </label>
    </>
  );
}

function NumberField(props: { label: string; name: string; hint: string; value: string; set: (value: string) => void }) {
  const reason = wrong(props.name, props.value);
  return (
    <label>
      {props.label}
      <input
        type="text"
        inputMode="decimal"
        placeholder={props.hint}
        value={props.value}
        aria-invalid={reason ? true : undefined}
        title={reason}
        onInput={(event) => props.set(event.currentTarget.value)}
      />
      {reason && <span class="wrong">{reason.replace(/^.*; it takes /, "Takes ")}</span>}
    </label>
  );
}

const TITLES: Record<string, string> = { browser: "Web search", python: "Python" };

function Tools({ settings, change }: { settings: Settings; change: Change }) {
  const connected = useStore((all) => all.server).metadata?.tools ?? [];
  const toggled = (names: string[], name: string, isOn: boolean) =>
    isOn ? [...names, name] : names.filter((each) => each !== name);
  return (
    <fieldset>
      <legend>Tools</legend>
      {TOOLS.map((tool) => (
        <label class="check" key={tool.name}>
          <input
            type="checkbox"
            checked={settings.tools.includes(tool.name)}
            onChange={(event) => change({ tools: toggled(settings.tools, tool.name, event.currentTarget.checked) })}
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
      {connected.map((name) => (
        <label class="check" key={name}>
          <input
            type="checkbox"
            checked={settings.serverTools.includes(name)}
            onChange={(event) => change({ serverTools: toggled(settings.serverTools, name, event.currentTarget.checked) })}
          />
          {TITLES[name] ?? name} (runs on the server)
        </label>
      ))}
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
