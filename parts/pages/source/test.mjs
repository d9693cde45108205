// Bundle the unit tests and run them in node's own test runner: no browser, no DOM.
import { spawnSync } from "node:child_process";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { build } from "esbuild";

const folder = await mkdtemp(join(tmpdir(), "harmonium-pages-"));
const files = (await readdir("tests")).filter((name) => name.endsWith(".test.ts"));
await build({
  entryPoints: files.map((name) => `tests/${name}`),
  outdir: folder,
  outExtension: { ".js": ".mjs" },
  bundle: true,
  format: "esm",
  platform: "node",
});
const { status } = spawnSync(process.execPath, ["--test", folder], { stdio: "inherit" });
await rm(folder, { recursive: true });
process.exit(status ?? 1);
