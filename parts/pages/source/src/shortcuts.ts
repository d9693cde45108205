// Keys that work anywhere on the page.
import { begin, now, setDialog, toggle } from "./store";

export function onShortcut(event: KeyboardEvent): void {
  const isCommand = event.ctrlKey || event.metaKey;
  const deed =
    isCommand && event.key.toLowerCase() === "k" ? search : isCommand && event.shiftKey && event.code === "KeyO" ? begin : null;
  if (deed) {
    event.preventDefault();
    deed();
  } else if (event.key === "Escape" && now().drawer && !now().dialog) {
    document.querySelector<HTMLElement>(`.for-${now().drawer}`)?.focus();
    toggle("");
  } else if (event.key === "?" && !isCommand && !isTyping(event.target as HTMLElement)) {
    setDialog({ kind: "keys" });
  }
}

const isTyping = (element: HTMLElement) => /^(INPUT|TEXTAREA|SELECT)$/.test(element.tagName);

function search(): void {
  const field = document.querySelector<HTMLInputElement>(".chats input[type=search]");
  if (field && !field.checkVisibility()) toggle("chats");
  setTimeout(() => field?.focus()); // the drawer is drawn first
}
