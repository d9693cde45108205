"""The fast lane starts nothing, and a change leads to the tests that it can reach."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.changed import affected
from tests.lanes import HEAVY, has_target, without_most_cases

ROOT = Path(__file__).parents[2]
CONFTEST = """
from pathlib import Path
from tests.lanes import Lanes

def pytest_configure(config):
    config.addinivalue_line("markers", "heavy: as in pyproject.toml")
    lanes = Lanes(Path(__file__).parent, is_fast="fast" in str(config.rootpath))
    config.pluginmanager.register(lanes)
"""
TESTS = """
import multiprocessing, os, pytest, subprocess, sys

def start():
    subprocess.run([sys.executable, "-c", ""])

def test_starts():
    start()

@pytest.mark.heavy
def test_says_so():
    start()

@pytest.fixture(scope="module")
def started():
    start()

def test_has_it_started(started):
    pass

def test_forks():
    multiprocessing.get_context("spawn").Process(target=print).start()

def test_starts_nothing():
    pass
"""


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("lane", "outcome"),
    [("fast", "4 passed, 1 deselected, 3 errors"), ("all", "5 passed, 3 errors")],
)
def test_who_starts_a_process_has_to_say_so(tmp_path: Path, lane: str, outcome: str) -> None:
    folder = tmp_path / lane
    (folder / "tests" / "e2e").mkdir(parents=True)
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    (folder / "test_starting.py").write_text(TESTS)
    if lane == "fast":
        (folder / "tests" / "e2e" / "test_broken.py").write_text("raise SystemExit")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert outcome in done.stdout, done.stdout + done.stderr
    assert "mark it heavy" in done.stdout


def test_what_is_heavy_is_there() -> None:
    for path, _, test in (heavy.partition("::") for heavy in HEAVY):
        if (ROOT / path).exists() or not path.startswith("tests/parts/"):  # a part can be removed
            assert not test or f"def {test}" in (ROOT / path).read_text(encoding="utf-8"), test


class Case:
    """What is looked at of a test's case."""

    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid


def test_few_cases_of_each_test_are_its_first_its_last_and_some_between() -> None:
    cases: list[Any] = [Case(f"test_a.py::test[{number}]") for number in range(10)]
    cases += [Case("test_a.py::test_of_one_case"), Case("test_b.py::test[0]")]
    left_out = without_most_cases(cases)
    assert [each.nodeid[11:] for each in cases] == [
        *("test[0]", "test[3]", "test[6]", "test[9]", "test_of_one_case", "test[0]")
    ]
    assert len(left_out) == 6


CLOCKS: Final = {"monotonic", "perf_counter", "thread_time", "process_time", "time", "getrusage"}
_CLOCK: Final = re.compile(rf"\b({'|'.join(CLOCKS)})\(")
_STOPWATCH: Final = re.compile(r"\b(perf_counter|thread_time|process_time|getrusage)\(")
MEASURES: Final = ("tests/attack/", "tests/guided/", "tests/soak/")  # programs, not tests
SPENDS: Final = {  # CPU time, which what they test counts
    "tests/engines/native/grammar/test_compiling.py",
    "tests/service/test_work.py",
}


def _is_duration(node: ast.AST, durations: set[str]) -> bool:
    """Whether an expression has a difference of clocks, or a name of one."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and part.id in durations:
            return True
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Sub):
            calls = (each.func for each in ast.walk(part) if isinstance(each, ast.Call))
            if any(isinstance(call, ast.Attribute) and call.attr in CLOCKS for call in calls):
                return True
    return False


def _limits_of_time(text: str) -> Iterator[int]:
    """The lines of a test file that assert that something takes at most so long."""
    tree, durations = ast.parse(text), set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                durations |= {name} if _is_duration(value, durations) else set()
    for check in (node for node in ast.walk(tree) if isinstance(node, ast.Assert)):
        for compared in (node for node in ast.walk(check) if isinstance(node, ast.Compare)):
            sides = [compared.left, *compared.comparators]
            for smaller, op, larger in zip(sides, compared.ops, sides[1:], strict=False):
                least = larger if isinstance(op, ast.Gt | ast.GtE) else smaller
                is_order = isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE)
                if is_order and _is_duration(least, durations):
                    yield check.lineno


def test_no_test_fails_because_a_machine_is_busy() -> None:
    """Count something instead (tests/calls.py), or measure in a benchmark."""
    found = []
    for file in sorted((ROOT / "tests").rglob("*.py")):
        path = file.relative_to(ROOT).as_posix()
        text = file.read_text("utf-8")
        if not _CLOCK.search(text) or path.startswith(MEASURES) or has_target(file):
            continue
        found += [f"{path}:{line}" for line in _limits_of_time(text)]
        found += [path] if _STOPWATCH.search(text) and path not in SPENDS else []
    assert not found


@pytest.mark.slow
@pytest.mark.heavy  # reads the imports of all files
def test_a_change_leads_to_the_tests_that_import_it() -> None:
    files = affected({"service/harmony/typescript.py"})
    assert "tests/service/harmony/test_typescript.py" in files
    assert "tests/profiles/selection/test_selector.py" not in files
    assert not any(path.startswith("tests/e2e/") for path in files)


@pytest.mark.heavy  # reads the imports of all files
def test_a_change_of_a_page_or_of_data_leads_to_what_reads_it() -> None:
    assert "tests/guides/test_guides.py" in affected({"docs/guides/laptop.md"})
    assert len(affected({"Makefile"})) < 10
    assert "tests/profiles/selection/test_selector.py" in affected(
        {"profiles/data/profiles/native.yaml"}
    )


@pytest.mark.heavy  # reads the imports of all files
def test_a_change_of_what_all_share_leads_to_every_test() -> None:
    assert set(affected({"tests/conftest.py"})) > set(affected({"engines/base.py"}))
