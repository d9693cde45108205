/*! pdf.js: Copyright Mozilla Foundation, Apache License 2.0, https://github.com/mozilla/pdf.js */
// A worker: the text of one PDF, page by page. What comes with a file is read here and nowhere else.
import { getDocument, PasswordException, VerbosityLevel } from "pdfjs-dist";
// @ts-expect-error: has no types
import { WorkerMessageHandler } from "pdfjs-dist/build/pdf.worker.mjs";

/** What is told of a PDF; a fault ends it. */
export type Told = { page: number; of: number; text: string } | { lacks: string } | { fault: string };

// pdf.js in this worker, instead of in another one that it would start.
Object.assign(globalThis, { pdfjsWorker: { WorkerMessageHandler } });
const tell = (told: Told) => postMessage(told);

/** Asked for the tables of East Asian fonts that a PDF does not hold; they weigh as much as all else. */
class NoTables {
  async fetch({ kind, filename }: { kind: string; filename: string }): Promise<never> {
    if (kind === "cMapUrl") tell({ lacks: filename });
    throw new Error(`no ${filename}`);
  }
}

self.onmessage = async ({ data }: MessageEvent<ArrayBuffer>) => {
  try {
    const document = await getDocument({
      data,
      BinaryDataFactory: NoTables,
      useWorkerFetch: false,
      useWasm: false,
      useSystemFonts: true, // none is drawn
      disableFontFace: true,
      isOffscreenCanvasSupported: false,
      verbosity: VerbosityLevel.ERRORS,
    }).promise;
    for (let page = 1; page <= document.numPages; page++) {
      const { items } = await (await document.getPage(page)).getTextContent();
      const text = items.map((item) => ("str" in item ? item.str + (item.hasEOL ? "\n" : "") : "")).join("");
      tell({ page, of: document.numPages, text });
    }
  } catch (error) {
    tell({ fault: error instanceof PasswordException ? "is locked with a password" : "cannot be read as a PDF" });
  }
};
