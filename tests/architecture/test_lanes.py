"""The fast lane starts nothing, and a change leads to the tests that it can reach."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.changed import affected

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
