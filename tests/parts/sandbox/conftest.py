"""A sandbox of this machine, and a skip that says why where there is none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import cache

import pytest
import pytest_asyncio

from parts.sandbox.jail import fault
from parts.sandbox.runners import PYTHON, python
from service.tools import Toolbox, ToolSession
from tests.service.conftest import harmony_ids, make_client, make_runtime

__all__ = ["harmony_ids", "make_client", "make_runtime"]


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
