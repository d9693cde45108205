"""`make test-changed`: the tests that are near a change, by the graph of imports.

    python -m tests.changed [--since REVISION] [ARGUMENT OF PYTEST ...]

A test file is run if it changed, or imports a module that changed, directly or through at most
`NEAR` modules of the product. (The whole service imports nearly everything; `make test` runs all.)
A file that is not Python counts as every module and test file that names it. What starts processes
is left out (tests/lanes.py), as in `make test`.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import grimp

from tests.lanes import is_heavy

ROOT: Final = Path(__file__).parents[1]
NEAR: Final = 2
PRODUCT: Final = ("parts", "service", "engines", "auth", "profiles")
# Every test has the fixtures of these; what the first imports is not followed.
OF_ALL: Final = {"tests/conftest.py", "tests/lanes.py", "tests/sharing.py", "pyproject.toml"}
OF_PAGES: Final = "tests/guides/test_guides.py"  # reads every page


def main() -> None:
    arguments = sys.argv[1:]
    since = arguments.pop(1) if arguments[:1] == ["--since"] else "main"
    arguments = arguments[1:] if arguments[:1] == ["--since"] else arguments
    files = affected(changed_files(since))
    if not files:
        print("No test of the fast lane is near the change.")
        return
    print(f"{len(files)} of {len(test_files())} test files")
    command = [sys.executable, "-m", "pytest", "--fast", f"--only={','.join(files)}", *arguments]
    os.execv(sys.executable, command)


def changed_files(since: str) -> set[str]:
    """Paths that differ from where this branch left `since`, and those git does not know yet."""
    base = _git("merge-base", since, "HEAD").strip()
    told = _git("diff", "--name-only", base) + _git("ls-files", "--others", "--exclude-standard")
    return set(told.splitlines())


def affected(changed: set[str]) -> list[str]:
    """The test files of the fast lane that are near a change of these paths."""
    tests = {path for path in test_files() if not is_heavy(path)}
    if changed & OF_ALL:
        return sorted(tests)
    files = {path for path in changed if path.endswith(".py")}
    for path in changed - files:
        files |= set(_naming(path))
        if path.endswith(".md"):
            files.add(OF_PAGES)
    reached = _importers(files)
    return sorted(path for path in tests if path in files or _closure(path) & reached)


def test_files() -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py"))


def _importers(files: set[str]) -> set[str]:
    """The modules themselves, and the product's that import them, through `NEAR` others at most."""
    graph = _graph()
    reached = {_module(path) for path in files}
    for _ in range(NEAR):
        known = reached & graph.modules
        reached |= {
            each for name in known for each in graph.find_modules_that_directly_import(name)
        }
    return reached


@cache
def _graph() -> grimp.ImportGraph:
    return grimp.build_graph(*PRODUCT, cache_dir=str(ROOT / ".cache" / "grimp"))


@cache
def _closure(path: str) -> frozenset[str]:
    """The modules that a file of tests/ or tools/ imports: through others of these, no further."""
    found: set[str] = set()
    waiting = [path, *_conftests(path)]
    while waiting:
        for module in _imports(waiting.pop()):
            if module not in found:
                found.add(module)
                waiting += [of] if (of := _path(module)) else []
    return frozenset(found)


def _conftests(path: str) -> list[str]:
    """The conftest.py of the folders around a test, without that of all tests."""
    folders = [*Path(path).parents][:-2]  # tests and .
    found = [str(folder / "conftest.py") for folder in folders]
    return [name for name in found if (ROOT / name).exists()]


def _imports(path: str) -> Iterator[str]:
    for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def _path(module: str) -> str | None:
    """The file of a module of tests/ or tools/."""
    path = Path(*module.split(".")).with_suffix(".py")
    is_ours = path.parts[0] in ("tests", "tools") and (ROOT / path).exists()
    return str(path) if is_ours else None


def _module(path: str) -> str:
    return ".".join(Path(path).with_suffix("").parts).removesuffix(".__init__")


def _naming(path: str) -> Iterator[str]:
    """Python files that have this file's name in them, or its folder's in quotes."""
    folder = Path(path).parent.name
    names = (Path(path).name, *([f'"{folder}"'] if folder else []))
    for folder in (*PRODUCT, "tests", "tools"):
        for file in (ROOT / folder).rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            if any(name in text for name in names):
                yield str(file.relative_to(ROOT))


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout


if __name__ == "__main__":
    main()
