"""Copies to a device through pinned buffers, several at a time."""

from __future__ import annotations

import pytest
import torch

from engines.native.artefact.upload import BUFFER_BYTES, Uploads, to_device


def test_on_the_cpu_nothing_is_copied() -> None:
    tensor = torch.arange(1 << 20)
    assert to_device(tensor, torch.device("cpu")) is tensor


@pytest.mark.skipif(not torch.cuda.is_available(), reason="it copies to a GPU; make test-gpu")
def test_copies_arrive_whole_in_memory_that_was_just_used() -> None:
    device = torch.device("cuda")
    sources = [torch.randint(0, 256, (2 * BUFFER_BYTES + 17 + i,)).byte() for i in range(8)]
    with Uploads(device) as uploads:
        for _ in range(4):
            coming = [uploads.begin(source) for source in sources]
            for source, upload in zip(sources, coming, strict=True):
                assert torch.equal(upload.arrived().cpu(), source)
