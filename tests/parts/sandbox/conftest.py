"""A sandbox of this machine, and a skip that says why where there is none."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from functools import cache

import pytest
import pytest_asyncio

from parts.sandbox.jail import fault
from parts.sandbox.runners import PYTHON, python
from service.tools import Toolbox, ToolSession
from tests.parts.sandbox.web import Web, serving
from tests.service.conftest import harmony_ids, make_client, make_runtime

__all__ = ["harmony_ids", "make_client", "make_runtime"]

RESULTS = [
    {"url": "https://a.example/x", "title": "An †A【1】", "content": "About  A.\nMore"},
    {"url": "http://169.254.169.254/latest/meta-data/", "title": "Meta"},
]
FOUND = (200, {"content-type": "application/json"}, json.dumps({"results": RESULTS}).encode())


@pytest.fixture
def searxng() -> Iterator[Web]:
    with serving({"/search": FOUND}) as web:
        yield web


@cache
def _fault() -> str | None:
    return fault(PYTHON)


@pytest.fixture
def works() -> None:
    if (reason := _fault()) is not None:
        pytest.skip(reason)


@pytest_asyncio.fixture
async def session(works: None) -> AsyncIterator[ToolSession]:
    async with Toolbox({"python": python()}).session({}) as session:
        yield session
