"""Whether the rest is whole when parts are removed.

    python -m tests.without all           # no part: the core's tests, and nano answers a chat
    python -m tests.without kv_events     # without this part; its own tests go with it
    python -m tests.without --near kv_events       # collect all; run the tests that name it
    python -m tests.without host_kv -- tests/engines/native
    python -m tests.without --list --since main    # those that changed (all, without --since)

Copies the checkout's files to a temporary folder, removes parts/<name> and tests/parts/<name>
(`all`: every part), and runs the fast tests there, and a real server. What follows `--` is
pytest's, in place of all fast tests. `--near` takes a fifth of the time while one works: tests name
a part by its imports, settings, routes or commands, or they import what does; and what looks at the
whole tree is run.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
# A real server on nano that answers a chat.
_SERVED: Final = "tests/service/run/test_serve.py"
# These name parts for some of the tests that share them.
_OF_ALL: Final = {"tests/conftest.py", "tests/service/conftest.py", "tests/without.py"}
# What looks at the whole tree, its settings, its routes and its commands.
_WHOLE: Final = (
    *("tests/architecture/", "tests/guides/", "tests/packaging/", "tests/parts/test_"),
    *("tests/service/api/about/", "tests/service/api/test_", "tests/service/cli/"),
    *("tests/service/settings/", "tests/service/telemetry/", "tests/service/run/test_st"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the tests of a tree without a part.")
    parser.add_argument("part", nargs="?", help="a folder of parts/, or all")
    parser.add_argument("--list", action="store_true", help="print the names of the parts")
    parser.add_argument("--near", action="store_true", help="collect all tests, run those near it")
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
        if asked.near:
            files = near(tree, asked.part)
            print(f"{len(files)} test files are near {asked.part}", flush=True)
            code = pytest(tree, "--fast", "--collect-only", "-qqq", "-n", "0")
            return code or pytest(tree, "--fast", f"--only={','.join(files)}", *asked.pytest)
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


def near(tree: Path, part: str) -> list[str]:
    """The test files of a tree that name a part, or import or share what does."""
    named = words(part)
    texts = {
        path.relative_to(tree).as_posix(): path.read_text(encoding="utf-8")
        for path in (tree / "tests").rglob("*.py")
    }
    found = {path for path, text in texts.items() if named.search(text)} - _OF_ALL
    waiting = [path for path in found if "/test_" not in path]
    while waiting:
        path = waiting.pop()
        if path.endswith("/conftest.py"):
            more = {other for other in texts if other.startswith(path.removesuffix("conftest.py"))}
        else:
            module = path.removesuffix(".py").replace("/", ".")
            more = {other for other, text in texts.items() if f"{module} import" in text}
        more -= found | _OF_ALL
        waiting += [other for other in more if "/test_" not in other]
        found |= more
    found |= {path for path in texts if path.startswith(_WHOLE)}
    return sorted(path for path in found if "/test_" in path)


def words(part: str) -> re.Pattern[str]:
    """What a file has in it that names the part: it, its settings, routes and commands."""
    # Imported here, for CI lists the parts with no package installed.
    from engines.parts import facet, facets
    from service.settings.group import Group

    routes: tuple[Any, ...] = facet(part, "routes", tuple) or ()
    commands: Mapping[str, Any] = facet(part, "commands", Mapping) or {}  # type: ignore[type-abstract]
    group: Any = facets("settings", Group).get(part)
    settings = inspect.get_annotations(group) if group is not None else {}
    found = [rf"parts[./]{part}\b", rf"[\"']{part}[\"'/]"]
    for row in (row for each in routes for row in each.rows if row.path != "/"):
        found.append(rf"{re.escape(row.path.partition('{')[0])}[\"'/{{?]")
    found += [rf"[\"']{name}[\"']" for name in commands]
    for name in settings:
        found += [rf"\b{name}\b", rf"NIM_{name.upper()}\b", rf"--{name.replace('_', '-')}\b"]
    return re.compile("|".join(dict.fromkeys(found)))


def pytest(tree: Path, *arguments: str) -> int:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    return subprocess.run(command, cwd=tree, env=environment, check=False).returncode


def copy(tree: Path) -> None:
    """Copy what git tracks, or would, with its bytecode: to compile all takes half a minute."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True, text=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    for folder in [path for path in tree.rglob("*") if path.is_dir()]:
        compiled = ROOT / folder.relative_to(tree) / "__pycache__"
        if compiled.is_dir():
            shutil.copytree(compiled, folder / "__pycache__")


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
