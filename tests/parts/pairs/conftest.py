"""Tests of two parts together, in files named after both; not where one was removed."""

from __future__ import annotations

from pathlib import Path

from engines.parts import folders
from tests.service.conftest import harmony_ids, make_client, make_runtime, openai_sdk
from tests.service.over_http import serve

__all__ = ["harmony_ids", "make_client", "make_runtime", "openai_sdk", "serve"]

_PAIRS = {
    "test_decisions_moderations.py": {"decisions", "moderations"},
    "test_dynamo_kv_events.py": {"dynamo", "kv_events"},
}
collect_ignore = [file for file, parts in _PAIRS.items() if parts - folders().keys()]
assert {path.name for path in Path(__file__).parent.glob("test_*.py")} <= _PAIRS.keys()
