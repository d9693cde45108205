"""What vLLM's classes have in every version that the adapter is for (surface.json).

Written from the sources of the versions named there: fields, and attributes of __init__.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

SURFACE: Final[dict[str, list[str]]] = json.loads(
    Path(__file__).with_name("surface.json").read_text()
)["names"]  # fmt: skip


def stand_in(name: str, **values: Any) -> SimpleNamespace:
    """An object of vLLM's as far as the adapter looks at it."""
    assert values.keys() <= {*SURFACE[name]}, name
    return SimpleNamespace(**values)
