// Bundle src/ into ../static. The same lock file gives the same bytes: no date.
import { createHash } from "node:crypto";
import { copyFile, mkdir, readdir, readFile, rm } from "node:fs/promises";
import { build } from "esbuild";

const target = "../static";
const common = { outdir: target, bundle: true, minify: true, format: "esm", target: "es2022", legalComments: "eof" };
await rm(target, { recursive: true, force: true });
await mkdir(target);
await build({
  ...common,
  entryPoints: ["src/app.tsx", "src/style.css"],
  splitting: true, // math and highlighting are fetched when an answer needs them
  chunkNames: "[name]-[hash]",
});
// Alone: what two pages share would be one more file of both.
await build({ ...common, entryPoints: ["src/docs.tsx", "src/docs.css"] });
await build({ ...common, entryPoints: ["src/pdf.ts"] });
for (const name of ["index.html", "docs.html", "lost.html", "icon.svg"]) await copyFile(`src/${name}`, `${target}/${name}`);
// The service worker knows the files of the playground, and is another where one of them is. That
// which reads PDFs weighs more than all others: only who attaches one fetches it.
const files = (await readdir(target)).filter((name) => !/^docs\.|^pdf\.|\.html$/.test(name)).sort();
const hash = createHash("sha256");
for (const name of [...files, "index.html"]) hash.update(await readFile(`${target}/${name}`));
await build({
  ...common,
  entryPoints: ["src/offline.ts"],
  define: { FILES: JSON.stringify(files), VERSION: JSON.stringify(hash.digest("hex").slice(0, 12)) },
});
