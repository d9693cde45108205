"""Fixtures of the tests with the real library; the other tests of this folder import none of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.engines.contract.contenders import Checkpoint
    from tests.parts.dynamo.network.deployment import Deployment


@pytest.fixture
async def deployed() -> AsyncIterator[Deployment]:
    from tests.parts.dynamo.network.deployment import deployment

    async with deployment() as started:
        yield started


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    from tests.engines.contract.contenders import write_checkpoint

    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))
