// A link whose fragment holds a question and its settings: no server keeps it.
import { DEFAULTS, type Settings } from "./conversation";
import { base } from "./server";

const MARK = "#share=";

interface Shared {
  text: string;
  settings: Settings;
}

/** The link to a question with the settings that differ from the page's own. */
export function linkOf({ text, settings }: Shared): string {
  const changed = Object.entries(settings).filter(([name, value]) => !isEqual(value, DEFAULTS[name as keyof Settings]));
  const bytes = new TextEncoder().encode(JSON.stringify({ text, settings: Object.fromEntries(changed) }));
  const coded = btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
  return `${base()}/${MARK}${coded.replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "")}`;
}

/** What a link's fragment holds; of the settings only what this page knows. Null where it is no such link. */
export function readLink(fragment: string): Shared | null {
  if (!fragment.startsWith(MARK)) return null;
  try {
    const coded = atob(fragment.slice(MARK.length).replaceAll("-", "+").replaceAll("_", "/"));
    const held = JSON.parse(new TextDecoder().decode(Uint8Array.from(coded, (each) => each.charCodeAt(0)))) as Partial<Shared>;
    const known = Object.entries(held.settings ?? {}).filter(([name, value]) => isLike(value, DEFAULTS[name as keyof Settings]));
    return { text: String(held.text ?? ""), settings: { ...DEFAULTS, ...Object.fromEntries(known) } };
  } catch {
    return null;
  }
}

const isEqual = (one: unknown, other: unknown) => JSON.stringify(one) === JSON.stringify(other);

/** Of the same type, with texts in lists and objects: what is kept must not break the page. */
function isLike(value: unknown, known: unknown): boolean {
  if (known === undefined || typeof value !== typeof known || Array.isArray(value) !== Array.isArray(known)) return false;
  return typeof value !== "object" || (value !== null && Object.values(value).every((each) => typeof each === "string"));
}
