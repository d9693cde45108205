"""Blocks of a prompt are sent while the rest of it is computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.base import EngineRequest, SamplingParams
from engines.native.assemble import load_core
from engines.native.config import NativeConfig
from engines.native.loop.block_pool import FULL, WINDOW
from engines.native.loop.core import EngineCore
from parts.dynamo.handover.ask import PrefillAsk
from parts.dynamo.handover.channel import HandoverError
from parts.dynamo.handover.exchange import copy_out
from parts.dynamo.handover.server import Piece
from tests.parts.dynamo.handover.pairs import BLOCK, prompt, source_of

LENGTH = 399
CHUNK = 64
NUM_WINDOW = 2  # blocks that a window of 8 tokens sees
ASK = PrefillAsk(EngineRequest("given", prompt(0, LENGTH), SamplingParams(1, temperature=0.0)), {})


def core_of(folder: Path, **options: Any) -> EngineCore:
    options = {"num_kv_blocks": 500, "max_num_batched_tokens": CHUNK} | options
    return load_core(NativeConfig(folder, block_size=BLOCK, max_model_len=512, **options))


def ready(pieces: Any) -> list[Piece]:
    """What can be sent now."""
    found = []
    while (piece := next(pieces, None)) is not None:
        found.append(piece)
    return found


@pytest.mark.parametrize("is_overlapped", [False, True])
@pytest.mark.parametrize("num_known", [0, 30])
def test_each_step_brings_its_blocks_and_the_last_one_the_windows(
    folder: Path, num_known: int, is_overlapped: bool
) -> None:
    core = core_of(folder, overlap_steps=is_overlapped)
    sequence = core.scheduler.add(ASK.request)
    given_keys: list[bytes] = []
    contents = []
    with source_of(core).serve(PrefillAsk(ASK.request, {}, num_known)) as given:
        assert not given.is_cached
        pieces = given.pieces(0.001)
        while core.has_work:
            core.step()
            for keys, content in ready(pieces):
                given_keys += keys
                contents.append(np.array(content))
            if not sequence.is_ended:
                num = max(sequence.num_computed_tokens // BLOCK, num_known)
                assert sum(key.startswith(FULL) for key in given_keys) == num - num_known
                # Also what a peer needs to continue from here, if this is the last that it gets.
                if num - num_known >= CHUNK // BLOCK:
                    ends = [key[1:] for key in given_keys if key.startswith(FULL)][-NUM_WINDOW:]
                    assert given_keys[-NUM_WINDOW:] == [WINDOW + each for each in ends]
    found = core.scheduler.blocks.cached_prefix(sequence)
    assert [key for key in given_keys if key.startswith(FULL)] == found.full[num_known:]
    assert given_keys[-NUM_WINDOW:] == found.window
    assert len(given_keys) == len(set(given_keys))
    whole = copy_out(core, given_keys)
    assert whole is not None
    assert np.array_equal(np.concatenate(contents), whole().reshape(-1))
    core.step()
    assert not core.watchers


def test_what_is_not_taken_is_not_copied(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that reads slowly takes so much host memory and no more, and gets all of it."""
    monkeypatch.setattr("parts.dynamo.handover.prefill_source.PIECE_BYTES", 1)
    monkeypatch.setattr("parts.dynamo.handover.prefill_source.MOST_BYTES", 5)
    core = core_of(folder)
    num_copied = []
    core.scheduler.add(ASK.request)
    with source_of(core).serve(ASK) as given:
        while core.has_work:
            core.step()
            num_copied.append(given._ready.qsize())
        assert max(num_copied) == 5
        taken = ready(given.pieces(0.001))
        assert len(taken) == (LENGTH - 1) // BLOCK + 2
    with source_of(core).serve(ASK) as again:
        assert again.is_cached
        assert [keys for keys, _ in ready(again.pieces(0.001))] == [keys for keys, _ in taken]


def test_blocks_that_are_evicted_before_they_are_copied_end_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parts.dynamo.handover.prefill_source.PIECE_BYTES", 1)
    monkeypatch.setattr("parts.dynamo.handover.prefill_source.MOST_BYTES", 5)
    core = core_of(folder, num_kv_blocks=150)
    core.scheduler.add(ASK.request)
    with source_of(core).serve(ASK) as given:
        while core.has_work:
            core.step()
        core.scheduler.add(EngineRequest("other", prompt(1, LENGTH), SamplingParams(1)))
        while core.has_work:
            core.step()
        with pytest.raises(HandoverError, match="evicted"):
            ready(given.pieces(0.001))
