from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.engines.handover.pairs import free_endpoint, write_checkpoint


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A small checkpoint; engines of this process compute with one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield write_checkpoint(tmp_path_factory.mktemp("checkpoint"))
    torch.set_num_threads(before)


@pytest.fixture
def endpoint() -> str:
    return free_endpoint()
