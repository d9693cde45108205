// Files and long pastes that go with a message, and how many tokens they are.
import { postJSON } from "./api";
import type { Attached } from "./conversation";
import { change, now } from "./store";

export const LONG_PASTE = 4000; // characters; more is a file

/** Take files as text; gives what is wrong with those that are left out. */
export async function attachFiles(id: string, files: Iterable<File>): Promise<string> {
  const refused: string[] = [];
  const { textOf } = await import("./files");
  for (const file of files) {
    try {
      attach(id, file.name, await textOf(file));
    } catch (error) {
      refused.push(`${file.name} ${(error as Error).message}.`);
    }
  }
  return refused.join(" ");
}

export function attachPaste(id: string, text: string): void {
  const { attached } = chatOf(id);
  const number = attached.filter((each) => each.name.startsWith("pasted")).length;
  attach(id, `pasted${number ? `-${number + 1}` : ""}.txt`, text);
}

export function detach(id: string, at: number): void {
  change(id, { attached: chatOf(id).attached.filter((_, index) => index !== at) });
}

function attach(id: string, name: string, text: string): void {
  change(id, { attached: [...chatOf(id).attached, { name, text, tokens: null }] });
  void count(text).then((tokens) => {
    const counted = (each: Attached) => (each.name === name && each.text === text ? { ...each, tokens } : each);
    change(id, { attached: chatOf(id).attached.map(counted) });
  });
}

const chatOf = (id: string) => now().chats.find((each) => each.id === id)!;

/** How many tokens a text is, as the server counts; null where it cannot be asked. */
async function count(text: string): Promise<number | null> {
  const { server, apiKey } = now();
  try {
    return (await postJSON<{ count: number }>("tokenize", { model: server.model?.id, prompt: text }, apiKey)).count;
  } catch {
    return null;
  }
}
