"""How the tests are dealt out to the processes of pytest-xdist, so that none ends long before.

A part stays together: a file's tests, for they share its fixtures, and those of some folders that
share a server, engines, or what takes seconds to load. The long parts come first: what comes last
is short.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

# The part of what lies there; the longest first.
PARTS: Final = {
    "tests/e2e/": "a server on nano",
    "tests/engines/contract/": "engines, and transformers",
    "tests/engines/native/model/": "engines, and transformers",
    "tests/engines/native/grammar/": "the vocabulary as grammars need it",
    "tests/service/guide/": "the vocabulary as grammars need it",
    "tests/service/api/chat/test_guided.py": "the vocabulary as grammars need it",
    "tests/parts/completions/test_guided.py": "the vocabulary as grammars need it",
    "tests/parts/mcp/": "an MCP server",
    "tests/parts/messages/test_sdk.py": "SDKs",
    "tests/parts/completions/test_sdk.py": "SDKs",
    "tests/parts/families/test_published.py": "SDKs",
    "tests/service/harmony/test_pieces.py": "the published library",
    "tests/service/harmony/test_typescript.py": "the published library",
    "tests/service/harmony/test_vocabulary.py": "the published library",
}
APART: Final = "tests/cluster/test_changes.py"  # its tests take minutes and share nothing
LONG_FIRST: Final = (*PARTS, "tests/service/run/", APART)


def part_of(nodeid: str) -> str:
    """What runs in one process with that test: a part of PARTS, its file, or that test alone."""
    path = nodeid.partition("::")[0]
    if path == APART:
        return nodeid
    return next((part for prefix, part in PARTS.items() if path.startswith(prefix)), path)


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
