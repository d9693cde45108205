// The text of a file. A worker reads PDFs, so a large or a hostile one holds nothing up.
import type { Told } from "./pdf";

const MOST_BYTES = 4 * 1024 * 1024;
const MOST_PDF_BYTES = 32 * 1024 * 1024;
const STILL_MS = 30_000; // without a page, it is given up
const MOST_CHARACTERS = 4_000_000;

/** The text, or an error that says what is wrong with the file. */
export async function textOf(file: File): Promise<string> {
  if ((await file.slice(0, 5).text()) === "%PDF-") {
    if (file.size > MOST_PDF_BYTES) throw new Error("is larger than 32 MiB");
    return textOfPdf(file);
  }
  if (file.size > MOST_BYTES) throw new Error("is larger than 4 MiB");
  const text = await file.text();
  if (text.includes("\0")) throw new Error("is not text; gpt-oss reads text, and of a PDF its text");
  return text;
}

async function textOfPdf(file: File): Promise<string> {
  const worker = new Worker(new URL("./pdf.js", import.meta.url), { type: "module" });
  try {
    return await read(worker, await file.arrayBuffer());
  } finally {
    worker.terminate();
  }
}

function read(worker: Worker, data: ArrayBuffer): Promise<string> {
  return new Promise((done, fail) => {
    const refuse = (fault: string) => fail(new Error(fault));
    const later = () => setTimeout(refuse, STILL_MS, "takes too long to read");
    const pages: string[] = [];
    let [timer, length, lacks] = [later(), 0, false];
    worker.onerror = () => refuse("cannot be read in this browser");
    worker.onmessage = ({ data: told }: MessageEvent<Told>) => {
      clearTimeout(timer);
      timer = later();
      if ("lacks" in told) lacks = true;
      if ("fault" in told) refuse(told.fault);
      if (!("text" in told)) return;
      pages.push(told.text.trim().replaceAll("\0", "\uFFFD")); // of glyphs that stand for no character
      length += told.text.length;
      if (length > MOST_CHARACTERS) refuse("has more than 4,000,000 characters of text");
      if (told.page < told.of) return;
      clearTimeout(timer);
      const text = pages.filter(Boolean).join("\n\n");
      if (lacks) refuse("uses East Asian fonts that it does not hold, so its text cannot be read");
      else if (text) done(text);
      else refuse("holds pictures of its pages and no text");
    };
    worker.postMessage(data, [data]);
  });
}
