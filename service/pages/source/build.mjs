// Bundle src/ into ../static. The same lock file gives the same bytes: no hash, no date.
import { copyFile, rm, mkdir } from "node:fs/promises";
import { build } from "esbuild";

const target = "../static";
await rm(target, { recursive: true, force: true });
await mkdir(target);
await build({
  entryPoints: ["src/app.tsx", "src/style.css"],
  outdir: target,
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  legalComments: "eof",
});
await copyFile("src/index.html", `${target}/index.html`);
await copyFile("src/icon.svg", `${target}/icon.svg`);
