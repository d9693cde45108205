"""Follow guides word for word: run their `sh` and `python` blocks and look for what they promise.

    python tests/guides/run_guides.py docs/guides/*.md

The blocks of a guide run one after the other in one shell, in an empty home and folder of their
own; `harmonium serve` runs beside it from when it is ready, and the next one takes its place. A
`text` block after one of them is what it shows, line by line; `…` stands for anything. After
`<!-- fails -->` a block must fail. Blocks of other languages are not run.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTED = "127.0.0.1:8000"
LIMIT_S = 900
_BLOCK = re.compile(r"(<!-- fails -->\s*)?^( *)```(\w+)\n(.*?)^\2```$", re.DOTALL | re.MULTILINE)
_MARK = "=== block {}"
_PRELUDE = r"""
set -eo pipefail
SERVER=
stop() { if [ -n "$SERVER" ]; then kill -INT $SERVER; wait $SERVER || true; SERVER=; fi; }
trap stop EXIT
program=$(command -v harmonium)
harmonium() {
  if [ "$1" != serve ] || [[ " $* " == *" --dry-run "* ]]; then "$program" "$@"; return; fi
  stop
  "$program" "$@" > serve.log 2>&1 &
  SERVER=$!
  until curl -sfo /dev/null http://127.0.0.1:8000/v1/health/ready; do
    if ! kill -0 $SERVER 2> /dev/null; then
      wait $SERVER || code=$?; SERVER=; cat serve.log; return $code
    fi
    sleep 0.5
  done
}
"""


@dataclass(frozen=True)
class Block:
    """What a reader pastes, and what it then shows."""

    language: str
    code: str
    must_fail: bool
    shown: list[str]


def blocks_of(text: str) -> list[Block]:
    """The blocks that are run, each with the `text` block after it."""
    found: list[Block] = []
    for fails, _, language, indented in _BLOCK.findall(text):
        code = textwrap.dedent(indented)
        if language in ("sh", "python"):
            found.append(Block(language, code, bool(fails), []))
        elif language == "text" and found:
            found[-1].shown.extend(code.splitlines())
    return found


def script_of(blocks: list[Block]) -> str:
    """One program of the shell that runs them all."""
    parts = [_PRELUDE]
    for number, block in enumerate(blocks):
        code = block.code
        if block.language == "python":
            code = f"python - <<'END_OF_PROGRAM'\n{code}END_OF_PROGRAM\n"
        if block.must_fail:
            code = f"if {{\n{code}}}; then echo 'this should have failed'; exit 1; fi\n"
        parts.append(f"printf '\\n{_MARK.format(number)}\\n'\n{code}")
    return "\n".join(parts)


def follow(guide: Path) -> list[str]:
    """Run a guide; return what went otherwise than it says."""
    blocks = blocks_of(guide.read_text(encoding="utf-8"))
    if not blocks:
        return []
    address = f"127.0.0.1:{free_port()}"
    script = script_of(blocks).replace(DOCUMENTED, address)
    with tempfile.TemporaryDirectory(prefix="guide-") as home:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("NIM_")}
        environment = kept | {
            "HOME": home,
            "NIM_SERVER_PORT": address.rpartition(":")[2],
            "OPENAI_BASE_URL": f"http://{address}",  # what `harmonium chat` takes for 8000
        }
        shell = subprocess.Popen(
            ["bash", "-c", script],
            cwd=home,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            output, _ = shell.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(shell.pid, signal.SIGKILL)
            return [f"took longer than {LIMIT_S} s"]
    output = output.replace(address, DOCUMENTED)
    if shell.returncode:
        return [f"ended with {shell.returncode}:\n{output[-3000:]}"]
    outputs = re.split(r"^=== block \d+\n", output, flags=re.MULTILINE)[1:]
    pairs = zip(blocks, outputs, strict=True)
    return [fault for block, shown in pairs for fault in differences(block, shown)]


def differences(block: Block, output: str) -> list[str]:
    """The promised lines that the output lacks."""
    lacking = [line for line in block.shown if not pattern_of(line).search(output)]
    return [f"does not show {line!r}, but:\n{output[-3000:]}" for line in lacking]


def pattern_of(line: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in line.strip().split("…")))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def main() -> int:
    faults = 0
    for name in sys.argv[1:]:
        found = follow(Path(name))
        print(f"{name}: {'as written' if not found else ''}", flush=True)
        for fault in found:
            print(f"  {fault}", flush=True)
        faults += len(found)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
