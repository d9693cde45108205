// What the browser keeps: conversations on this device, the API key for this tab only.
import { DEFAULTS, newConversation, type Conversation } from "./conversation";

const CONVERSATIONS = "harmonium.conversations";
const KEY = "harmonium.key";
const THEME = "harmonium.theme";
const MAX_KEPT = 50;

export function readConversations(): Conversation[] {
  try {
    const kept = JSON.parse(localStorage.getItem(CONVERSATIONS) ?? "[]") as Conversation[];
    if (kept.length) {
      return kept.map((each) => ({ ...each, settings: { ...DEFAULTS, ...each.settings } }));
    }
  } catch {
    // Kept by another version, or by hand: begin anew rather than show an empty page.
  }
  return [newConversation()];
}

/** Keep the newest; the streams' raw lines are not kept, they are the largest part. */
export function keepConversations(conversations: Conversation[]): void {
  const slim = conversations.slice(0, MAX_KEPT).map((each) => ({
    ...each,
    turns: each.turns.map((turn) => (turn.role === "assistant" ? { ...turn, events: [] } : turn)),
  }));
  try {
    localStorage.setItem(CONVERSATIONS, JSON.stringify(slim));
  } catch {
    // Full or forbidden: the page works without.
  }
}

export const readKey = (): string => sessionStorage.getItem(KEY) ?? "";
export const keepKey = (key: string): void => sessionStorage.setItem(KEY, key);

export function applyTheme(theme: string | null): void {
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
}

export function toggleTheme(): void {
  const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme ?? (isDark ? "dark" : "light");
  const next = now === "dark" ? "light" : "dark";
  localStorage.setItem(THEME, next);
  applyTheme(next);
}

export const readTheme = (): string | null => localStorage.getItem(THEME);
