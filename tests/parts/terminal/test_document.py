"""docs/clients.md says what clients.toml, the programs and the pins say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.heavy
def test_the_page_is_made_of_what_is_run() -> None:
    program = Path(__file__).parents[2] / "clients" / "document.py"
    assert subprocess.call([sys.executable, str(program), "--check"]) == 0, "run `make clients`"
