// How to answer: the panel beside the conversation.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { RANGES, type Settings, wrong } from "./conversation";
import { Later } from "./later";
import { Presets } from "./presets";
import { setSettings, useStore } from "./store";
import { TOOLS } from "./tools";

const FORM = () => import("./form").then((module) => module.Form);
const EXAMPLE = () => import("./form").then((module) => module.Example);
const FUNCTIONS = () => import("./functions").then((module) => module.Functions);
const MORE_FIELDS = () => import("./more").then((module) => module.More);

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
      <Folded title="More fields" isOpen={Object.keys(settings.more).length > 0}>
        <Later load={MORE_FIELDS} props={{ more: settings.more, set: (more) => change({ more }) }} />
      </Folded>
      <Check isOn={settings.probabilities} set={(probabilities) => change({ probabilities })}>
        Token probabilities
      </Check>
    </>
  );
}

/** What is drawn when it is unfolded. */
function Folded(props: { title: string; isOpen: boolean; children: ComponentChildren }) {
  const [isOpen, setOpen] = useState(props.isOpen);
  return (
    <details open={props.isOpen || isOpen} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>{props.title}</summary>
      {(props.isOpen || isOpen) && props.children}
    </details>
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

export function NumberField({ label, name, hint, value, set, step }: NumberProps) {
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
  const [isOpen, setOpen] = useState(Boolean(settings.ownTools));
  const connected = useStore((all) => all.server).metadata?.tools ?? [];
  const setOwn = (ownTools: string) => change({ ownTools });
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
      {!connected.length && (
        <p class="note">
          No server tools. NIM_BUILTIN_TOOLS=python,browser runs them on the server; NIM_BROWSER_MCP_URL and NIM_PYTHON_MCP_URL
          connect MCP servers.
        </p>
      )}
      <details open={isOpen} onToggle={(event) => setOpen(event.currentTarget.open)}>
        <summary>More tools</summary>
        {isOpen && <Later load={FUNCTIONS} props={{ tools: settings.ownTools, set: setOwn }} />}
        <label>
          As JSON for the API
          <textarea
            rows={3}
            class="code"
            placeholder='[{"type": "function", "function": {"name": …}}]'
            value={settings.ownTools}
            onInput={(event) => setOwn(event.currentTarget.value)}
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

const WAYS = ["Form", "JSON", "Example"] as const;

function Structure({ settings, change }: { settings: Settings; change: Change }) {
  const [way, setWay] = useState<(typeof WAYS)[number]>("Form");
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
            {WAYS.map((each) => (
              <button key={each} type="button" aria-pressed={each === way} onClick={() => setWay(each)}>
                {each}
              </button>
            ))}
          </div>
          {way === "Form" && <Later load={FORM} props={{ schema, set }} />}
          {way === "Example" && <Later load={EXAMPLE} props={{ label: "An answer as it should be", set }} />}
          {way === "JSON" && (
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
          {way === "JSON" && <p class="note">{readable(schema)}</p>}
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
