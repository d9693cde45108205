// Run functions of a program one after the other: `run_checks.mjs PROGRAM NAME...`.
// Writes one JSON line for each: {"check": NAME, "error": null or the stack}.
import { pathToFileURL } from "node:url";

const [path, ...names] = process.argv.slice(2);
const program = await import(pathToFileURL(path));
for (const name of names) {
  let error = null;
  try {
    await program[name]();
  } catch (thrown) {
    error = `${thrown?.stack ?? thrown}${thrown?.cause ? `\ncaused by ${thrown.cause}` : ""}`;
  }
  console.log(JSON.stringify({ check: name, error }));
}
process.exit(0); // a client may keep connections open
