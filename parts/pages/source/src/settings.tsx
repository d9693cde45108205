// How to answer: the panel beside the conversation.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { RANGES, type Settings, wrong } from "./conversation";
import { Later } from "./later";
import { Presets } from "./presets";
import { setSettings, useStore } from "./store";
import { TOOLS } from "./tools";

const FORM = () => import("./form").then((module) => module.Form);

type Change = (part: Partial<Settings>) => void;

export function SettingsPanel({ settings, change }: { settings: Settings; change: Change }) {
  return (
    <form class="settings" aria-label="Settings" onSubmit={(event) => event.preventDefault()}>
      <Presets settings={settings} change={setSettings} />
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
          step={0.05}
          value={settings.temperature}
          set={(temperature) => change({ temperature })}
        />
        <NumberField
          label="Top p"
          name="top_p"
          hint={String(defaults.top_p)}
          step={0.01}
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
      <Check isOn={settings.probabilities} set={(probabilities) => change({ probabilities })}>
        Token probabilities
      </Check>
    </>
  );
}

interface NumberProps {
  label: string;
  name: string;
  hint: string; // what holds while the field is empty
  value: string;
  set: (value: string) => void;
  step?: number; // with a slider
}

function NumberField({ label, name, hint, value, set, step }: NumberProps) {
  const reason = wrong(name, value);
  const { least, most } = RANGES[name]!;
  return (
    <label>
      {label} {step && <small>{`${least}–${most}`}</small>}
      <input
        type="text"
        inputMode="decimal"
        placeholder={hint}
        value={value}
        aria-invalid={reason ? true : undefined}
        title={reason || `Empty: ${hint}`}
        onInput={(event) => set(event.currentTarget.value)}
      />
      {step && (
        <input
          type="range"
          aria-hidden="true" // the field beside it says the same
          tabIndex={-1}
          min={least}
          max={most}
          step={step}
          value={value.trim() || hint}
          onInput={(event) => set(event.currentTarget.value)}
        />
      )}
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
      {TOOLS.map(({ name, title }) => (
        <Check
          key={name}
          isOn={settings.tools.includes(name)}
          set={(isOn) => change({ tools: toggled(settings.tools, name, isOn) })}
        >
          {title}
        </Check>
      ))}
      <Check isOn={settings.runsTools} set={(runsTools) => change({ runsTools })}>
        Run these automatically
      </Check>
      <p class="note">On the server:</p>
      {connected.map((name) => (
        <Check
          key={name}
          isOn={settings.serverTools.includes(name)}
          set={(isOn) => change({ serverTools: toggled(settings.serverTools, name, isOn) })}
        >
          {TITLES[name] ?? name} (runs on the server)
        </Check>
      ))}
      {!connected.length && <p class="note">None is connected. The operator can connect a browser and Python over MCP.</p>}
      <details open={Boolean(settings.ownTools)}>
        <summary>More tools</summary>
        <label>
          As JSON for the API
          <textarea
            rows={3}
            class="code"
            placeholder='[{"type": "function", "function": {"name": …}}]'
            value={settings.ownTools}
            onInput={(event) => change({ ownTools: event.currentTarget.value })}
          />
        </label>
      </details>
    </fieldset>
  );
}

/** A box to tick. */
export function Check(props: { isOn: boolean; set: (isOn: boolean) => void; children: ComponentChildren }) {
  return (
    <label class="check">
      <input type="checkbox" checked={props.isOn} onChange={(event) => props.set(event.currentTarget.checked)} />
      <span>{props.children}</span>
    </label>
  );
}

function Structure({ settings, change }: { settings: Settings; change: Change }) {
  const [isForm, setForm] = useState(true);
  const { schema } = settings;
  const set = (text: string) => change({ schema: text });
  return (
    <fieldset>
      <legend>Structured output</legend>
      <Check isOn={settings.usesSchema} set={(usesSchema) => change({ usesSchema })}>
        Make the answer follow this JSON schema
      </Check>
      {settings.usesSchema && (
        <>
          <div class="tabs" role="group" aria-label="Write it as">
            {["Form", "JSON"].map((each) => (
              <button
                key={each}
                type="button"
                aria-pressed={(each === "Form") === isForm}
                onClick={() => setForm(each === "Form")}
              >
                {each}
              </button>
            ))}
          </div>
          {isForm && <Later load={FORM} props={{ schema, set }} />}
          {!isForm && (
            <label>
              Schema
              <textarea
                rows={10}
                class="code"
                spellcheck={false}
                value={schema}
                onInput={(event) => set(event.currentTarget.value)}
              />
            </label>
          )}
          {!isForm && <p class="note">{readable(schema)}</p>}
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
