"""What serves nano where there is a GPU: the CUDA backend, so that all these tests are of it."""

from __future__ import annotations

import pytest
import torch

from tests.e2e.conftest import IS_GPU, Server

HOPPER = (9, 0)


@pytest.mark.skipif(not IS_GPU, reason="no GPU; make test-gpu runs it where there is one")
def test_nano_is_served_by_the_gpu(server: Server) -> None:
    if torch.cuda.get_device_capability() != HOPPER:
        pytest.skip("nano's only profile for a GPU is Hopper's; other cards serve it on the CPU")
    assert "Profile: native-hopper-bf16-tp1-pp1-balanced" in server.log.read_text()
