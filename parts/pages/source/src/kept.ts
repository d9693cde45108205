// What the browser keeps besides conversations: the theme, and the API key for this tab only.
import { DEFAULTS, type Settings } from "./conversation";

const KEY = "harmonium.key";
const THEME = "harmonium.theme";

/** Storage may be denied altogether: the page works without. */
function tried<T>(what: () => T, otherwise: T): T {
  try {
    return what();
  } catch {
    return otherwise;
  }
}

export const readKey = (): string => tried(() => sessionStorage.getItem(KEY) ?? "", "");
export const keepKey = (key: string): void => tried(() => sessionStorage.setItem(KEY, key), undefined);

/** The theme that was chosen: light, dark, or nothing for the system's. */
export const readTheme = (): string => tried(() => localStorage.getItem(THEME) ?? "", "");

export function applyTheme(theme: string): void {
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

export function chooseTheme(theme: string): void {
  tried(() => localStorage.setItem(THEME, theme), undefined);
  applyTheme(theme);
}

const SETTINGS = "harmonium.settings";

/** What a person chose in the panel: new chats begin with it. */
export const readChosen = (): Settings => {
  const held = tried(() => JSON.parse(localStorage.getItem(SETTINGS) ?? "{}") as unknown, {});
  return { ...DEFAULTS, ...(held && typeof held === "object" ? held : {}) };
};
export const keepChosen = (settings: Settings): void =>
  tried(() => localStorage.setItem(SETTINGS, JSON.stringify(settings)), undefined);

const PRESETS = "harmonium.presets";

/** Settings by the names that they were saved under. */
export function readPresets(): Record<string, Partial<Settings>> {
  return tried(() => {
    const held = JSON.parse(localStorage.getItem(PRESETS) ?? "{}") as Record<string, Partial<Settings>>;
    return Object.fromEntries(Object.entries(held).filter(([, each]) => each && typeof each === "object"));
  }, {});
}

export const keepPresets = (presets: Record<string, Partial<Settings>>): void =>
  tried(() => localStorage.setItem(PRESETS, JSON.stringify(presets)), undefined);
