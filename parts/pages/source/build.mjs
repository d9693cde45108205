// Bundle src/ into ../static. The same lock file gives the same bytes: no hash, no date.
import { copyFile, mkdir, rm } from "node:fs/promises";
import { build } from "esbuild";

const target = "../static";
await rm(target, { recursive: true, force: true });
await mkdir(target);
await build({
  entryPoints: ["src/app.tsx", "src/docs.tsx", "src/style.css", "src/docs.css"],
  outdir: target,
  bundle: true,
  minify: true,
  format: "esm",
  splitting: true, // math and highlighting are fetched when an answer needs them
  chunkNames: "[name]-[hash]",
  target: "es2022",
  legalComments: "eof",
});
for (const name of ["index.html", "docs.html", "icon.svg"]) await copyFile(`src/${name}`, `${target}/${name}`);
