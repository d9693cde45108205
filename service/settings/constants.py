"""Settings of earlier releases that are constants now; one that is set is refused at the start."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Final

from engines.parts import facets
from service.settings.group import Group

# By setting: its value now. A part's are in its group.
_OF_CORE: Final = {
    "compare_origins": "the origins in NIM_CORS_ALLOW_ORIGINS",
    "engine_quarantine_s": "600",
    "max_unread_bytes": "134217728",
    "max_unread_bytes_per_stream": "1048576",
    "slow_reader_timeout_s": "30",
    "sse_keepalive_s": "15",
}


@cache
def constants() -> dict[str, str]:
    """Every former setting, the parts' too, with its value now."""
    parts = facets("settings", Group).values()
    return _OF_CORE | {field: value for part in parts for field, value in part.constants.items()}


def refusals(names: Iterable[str]) -> list[str]:
    """What to say about each of these variables, flags or keys of a file that is a constant now."""
    return [
        f"{name} is no longer a setting, but a constant: {constants()[field]}. Remove it."
        for name in names
        if (field := _field(name)) in constants()
    ]


def _field(name: str) -> str:
    return name.removeprefix("--").replace("-", "_").lower().removeprefix("nim_")
