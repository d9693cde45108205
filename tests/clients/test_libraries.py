"""SDKs and frameworks: each runs a program that a user could have written, at its defaults."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Library = dict[str, Any]

pytestmark = pytest.mark.clients

LIBRARIES = tomllib.loads(Path(__file__).with_name("clients.toml").read_text())["library"]
CHECKS = [
    pytest.param(library, check, id=f"{library['name']}:{check}")
    for library in LIBRARIES
    for check in library["checks"]
]


@pytest.mark.parametrize(("library", "check"), CHECKS)
def test_a_library_works_unchanged(
    library: Library,
    check: str,
    failures: Callable[[Library], dict[str, str | None]],
) -> None:
    assert (error := failures(library)[check]) is None, error
