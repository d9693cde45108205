"""Fixtures every area may use."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="record tests/golden anew, to review the diff"
    )


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture
def compare(update_golden: bool) -> Callable[[str, str], None]:
    """Hold a text against the recorded one of that name."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if update_golden:
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8")

    return check


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the developer's shell reaches a test."""
    for name in list(os.environ):
        if name.startswith(("NIM_", "OTEL_")):
            monkeypatch.delenv(name)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what a default run leaves out and how to run it."""
    if terminalreporter.config.getoption("markexpr").startswith("not "):
        targets = "`make faults`, `make oidc`, `make rolling`, "
        targets += (
            "`make image`, `make chart`, `make conformance`, `make clients` and `make monitoring`"
        )
        terminalreporter.write_line(f"Left out: {targets} run their own tests.")
