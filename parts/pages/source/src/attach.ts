// Files and long pastes that go with a message, and how many tokens they are.
import { postJSON } from "./api";
import type { Attached } from "./conversation";
import { change, now } from "./store";

export const LONG_PASTE = 4000; // characters; more is a file
const MOST_BYTES = 4 * 1024 * 1024;
const MOST_PDF_BYTES = 32 * 1024 * 1024;

/** Take files as text; gives what is wrong with those that are left out. */
export async function attachFiles(id: string, files: Iterable<File>): Promise<string> {
  const refused: string[] = [];
  for (const file of files) {
    try {
      attach(id, file.name, await textOf(file));
    } catch (error) {
      refused.push(`${file.name} ${(error as Error).message}.`);
    }
  }
  return refused.join(" ");
}

async function textOf(file: File): Promise<string> {
  if ((await file.slice(0, 5).text()) === "%PDF-") {
    if (file.size > MOST_PDF_BYTES) throw new Error("is larger than 32 MiB");
    return (await import("./read-pdf")).textOfPdf(file);
  }
  if (file.size > MOST_BYTES) throw new Error("is larger than 4 MiB");
  const text = await file.text();
  if (text.includes("\0")) throw new Error("is not text; gpt-oss reads text, and of a PDF its text");
  return text;
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
