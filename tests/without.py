"""Whether the rest is whole when parts are removed.

    python -m tests.without all           # no part: the core's tests, and nano answers a chat
    python -m tests.without kv_events     # without this part; its own tests go with it
    python -m tests.without host_kv -- tests/engines/native
    python -m tests.without --list --since main    # those that changed (all, without --since)

Copies the checkout's files to a temporary folder, removes parts/<name> and tests/parts/<name>
(`all`: every part), and runs the fast tests there, and a real server. What follows `--` is
pytest's, in place of all fast tests.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
# A real server on nano that answers a chat.
_SERVED: Final = "tests/service/run/test_serve.py"


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the tests of a tree without a part.")
    parser.add_argument("part", nargs="?", help="a folder of parts/, or all")
    parser.add_argument("--list", action="store_true", help="print the names of the parts")
    parser.add_argument("--since", metavar="REVISION", help="of --list: only those that changed")
    parser.add_argument("pytest", nargs="*", help="arguments of pytest, behind --")
    asked = parser.parse_args()
    if asked.list:
        print(json.dumps(parts(asked.since)))
        return 0
    if asked.part is None:
        parser.error("name a part, or all")
    with tempfile.TemporaryDirectory(prefix="without-") as folder:
        tree = Path(folder)
        copy(tree)
        remove(tree, asked.part)
        code = pytest(tree, "--fast", *(asked.pytest or ["-n", "3"]))
        return code or pytest(tree, _SERVED)


def parts(since: str | None) -> list[str]:
    """The parts, or those of which something changed since a revision (all, if git lacks it)."""
    names = sorted(path.parent.name for path in (ROOT / "parts").glob("*/about.py"))
    command = ["git", "diff", "--name-only", f"{since}...HEAD", "--", "parts", "tests/parts"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if since is None or found.returncode:
        return names
    changed = {path.removeprefix("tests/").split("/")[1] for path in found.stdout.splitlines()}
    return [name for name in names if name in changed]


def pytest(tree: Path, *arguments: str) -> int:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    return subprocess.run(command, cwd=tree, env=environment, check=False).returncode


def copy(tree: Path) -> None:
    """Copy what git tracks, or would."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True, text=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)


def remove(tree: Path, part: str) -> None:
    if part == "all":
        # The empty package stays, or Python finds that of the checkout, which is installed.
        for folder in filter(Path.is_dir, (tree / "parts").iterdir()):
            shutil.rmtree(folder)
        shutil.rmtree(tree / "tests" / "parts")
        return
    shutil.rmtree(tree / "parts" / part)
    shutil.rmtree(tree / "tests" / "parts" / part, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
