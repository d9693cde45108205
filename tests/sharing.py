"""How the tests are dealt out to the processes of pytest-xdist, so that none ends long before.

A file's tests stay together, for they share its fixtures, and so do those of a folder that share a
server or engines. The long ones come first: what comes last is short.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

TOGETHER: Final = ("tests/e2e/", "tests/engines/contract/")
LONG_FIRST: Final = (*TOGETHER, "tests/service/run/", "tests/engines/native/grammar/")


def part_of(nodeid: str) -> str:
    """The folder or file whose tests run in one process."""
    path = nodeid.partition("::")[0]
    return next((folder for folder in TOGETHER if path.startswith(folder)), path)


class Sharing(LoadScopeScheduling):  # type: ignore[misc]
    """xdist's scheduling by scope, where part_of() is the scope and the order is in_order()'s."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return part_of(nodeid)


def in_order(items: list[pytest.Item]) -> list[pytest.Item]:
    """The long ones first, all else as it was."""

    def place(item: pytest.Item) -> int:
        return next(
            (i for i, path in enumerate(LONG_FIRST) if item.nodeid.startswith(path)),
            len(LONG_FIRST),
        )

    return sorted(items, key=place)
