// Settings under a name, kept in this browser.
import { useState } from "preact/hooks";
import { DEFAULTS, type Settings } from "./conversation";
import { keepPresets, readPresets } from "./kept";

const OWN: Record<string, Partial<Settings>> = {
  Defaults: DEFAULTS,
  Extract: { ...DEFAULTS, system: "Extract what the schema asks for.", temperature: "0", effort: "low", usesSchema: true },
  "Code review": { ...DEFAULTS, system: "Review the code. Name bugs first, then style.", effort: "high" },
};

/** All presets: the page's own and those that were saved. */
export const presets = (): Record<string, Partial<Settings>> => ({ ...OWN, ...readPresets() });

export function Presets({ settings, change }: { settings: Settings; change: (part: Partial<Settings>) => void }) {
  const [saved, setSaved] = useState(readPresets);
  const [name, setName] = useState<string | null>(null); // of the one that is being saved
  const all = { ...OWN, ...saved };
  const keep = (presets: Record<string, Partial<Settings>>) => {
    keepPresets(presets);
    setSaved(presets);
  };
  const save = () => {
    if (name?.trim()) keep({ ...saved, [name.trim()]: settings });
    setName(null);
  };
  const current = Object.entries(all).find(([, each]) => isSame({ ...DEFAULTS, ...each }, settings))?.[0] ?? "";
  return (
    <div class="presets">
      <label>
        Preset
        <select value={current} onChange={(event) => change({ ...DEFAULTS, ...all[event.currentTarget.value] })}>
          {current === "" && <option value="">not saved</option>}
          {Object.keys(all).map((each) => (
            <option key={each}>{each}</option>
          ))}
        </select>
      </label>
      {name === null ? (
        <span class="deeds">
          {current === "" && (
            <button type="button" onClick={() => setName("")}>
              Save as preset
            </button>
          )}
          {current in saved && (
            <button
              type="button"
              onClick={() => keep(Object.fromEntries(Object.entries(saved).filter(([each]) => each !== current)))}
            >
              Delete preset
            </button>
          )}
        </span>
      ) : (
        <span class="deeds">
          <input
            aria-label="Name of the preset"
            value={name}
            onInput={(event) => setName(event.currentTarget.value)}
            onKeyDown={(event) => {
              if (event.key === "Escape") setName(null);
              if (event.key === "Enter") save();
            }}
          />
          <button type="button" onClick={save}>
            Save
          </button>
        </span>
      )}
    </div>
  );
}

const isSame = (one: Settings, other: Settings) =>
  (Object.keys(DEFAULTS) as (keyof Settings)[]).every((name) => JSON.stringify(one[name]) === JSON.stringify(other[name]));
