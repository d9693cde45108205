"""Which release of Harmonium this is, also where it was never installed."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

NAME: Final = "harmonium"
_PROJECT: Final = Path(__file__).parents[1] / "pyproject.toml"


@cache
def release() -> str:
    """The installed version; of a checkout that is run from its folder, what its project says."""
    try:
        return version(NAME)
    except PackageNotFoundError:
        pass
    try:
        return str(tomllib.loads(_PROJECT.read_text())["project"]["version"])
    except (OSError, ValueError, KeyError):
        return "unknown"
