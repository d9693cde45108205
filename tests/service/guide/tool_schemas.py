"""Schemas of tools as MCP servers, agents and SDKs write them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

FILES: Final = tuple(sorted((Path(__file__).parent / "corpus").glob("*.yaml")))


@cache
def tool_schemas() -> dict[str, dict[str, Any]]:
    """The corpus: a tool's name and the schema of its arguments."""
    found: dict[str, dict[str, Any]] = {}
    for path in FILES:
        found |= yaml.safe_load(path.read_text(encoding="utf-8"))["tools"]
    return found
