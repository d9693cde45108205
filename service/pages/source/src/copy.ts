/** Copy, and say so on the button. The clipboard needs HTTPS or localhost; elsewhere a selection does. */
export async function copy(text: string, button: HTMLButtonElement): Promise<void> {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Press Ctrl-C";
    const source = button.parentElement?.querySelector("code, textarea");
    if (source) getSelection()?.selectAllChildren(source);
  }
  setTimeout(() => (button.textContent = label), 1500);
}
