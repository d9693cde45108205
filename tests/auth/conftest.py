"""Keys as the command makes them, and what an authenticator says of credentials."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.__main__ import main

CreateKey = Callable[..., str]


@pytest.fixture(autouse=True)
def keep_logging() -> Iterator[None]:
    """Commands configure logging for their process; here it goes back to what it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def create_key(capsys: pytest.CaptureFixture[str]) -> CreateKey:
    """Runs `harmonium keys create` and returns the key that it prints."""

    def create(path: Path, *options: str, name: str = "ci") -> str:
        capsys.readouterr()
        assert main(["keys", "--path", str(path), "create", name, *options]) == 0
        return capsys.readouterr().out.strip()

    return create
