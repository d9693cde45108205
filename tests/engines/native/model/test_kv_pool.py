"""How large the KV pool is made and how long a sequence it allows."""

from __future__ import annotations

from typing import Any

import pytest

from engines.errors import EngineStartError
from engines.native.backends.cpu import memory as memory_module
from engines.native.config import ModelConfig, NativeConfig
from engines.native.kv_pool import num_blocks_for


def test_the_automatic_pool_holds_every_sequence(make_folder: Any) -> None:
    capacity = make_folder().capacity(num_kv_blocks=None, max_model_len=100)
    one = 25 + 25  # blocks of 4 tokens, for full and for window layers in one chunk
    assert capacity.num_blocks == 4 * one + 1
    assert capacity.max_model_len == 100


def test_the_automatic_pool_takes_a_share_of_free_memory(
    make_folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One block of the test shape: 2 layers x 4 tokens x 64 values x 4 bytes."""
    monkeypatch.setattr(memory_module, "available_bytes", lambda: 2048 * 4 * 500)
    capacity = make_folder().capacity(num_kv_blocks=None)
    assert capacity.num_blocks == 500
    assert 500 < capacity.max_model_len < 500 * 4


def test_a_pool_too_small_for_one_sequence_is_refused(make_folder: Any) -> None:
    with pytest.raises(EngineStartError, match=r"num_kv_blocks is 20, .*100 tokens needs 51"):
        make_folder().load(num_kv_blocks=20, max_model_len=100)


def test_a_pool_above_the_free_memory_is_refused(make_folder: Any) -> None:
    with pytest.raises(EngineStartError, match="KV cache needs 2048000000000000 bytes"):
        make_folder().load(num_kv_blocks=10**12)


def test_host_memory_for_blocks_is_counted_and_refused_where_it_is_not_there(
    make_folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One block takes 2,048 bytes."""
    monkeypatch.setattr(memory_module, "available_bytes", lambda: 2048 * 4 * 500)
    capacity = make_folder().capacity(num_kv_blocks=None, host_kv_bytes=2048 * 4 * 100)
    assert (capacity.num_blocks, capacity.host.num_blocks) == (400, 400)
    assert capacity.host.block_bytes == 2048
    assert make_folder().capacity(num_kv_blocks=None).host is None
    with pytest.raises(EngineStartError, match="lower NIM_KV_CACHE_HOST_MEM_FRACTION"):
        make_folder().load(host_kv_bytes=2048 * 4 * 501)


def test_blocks_in_8_bits_take_a_quarter_of_those_in_32(make_folder: Any) -> None:
    sizes = {"num_kv_blocks": None, "host_kv_bytes": 2048 * 400}
    assert make_folder().capacity(**sizes).host.num_blocks == 400
    capacity = make_folder().capacity(**sizes, kv_dtype="fp8")
    assert (capacity.host.num_blocks, capacity.host.block_bytes) == (1600, 512)
    with pytest.raises(EngineStartError, match="kv_dtype is 'int4'"):
        make_folder().load(kv_dtype="int4")


def test_a_length_above_the_model_is_refused(make_folder: Any) -> None:
    with pytest.raises(EngineStartError, match="max_model_len is 4096, above"):
        make_folder().load(max_model_len=4096)


@pytest.mark.parametrize("num_blocks", [20, 200, 290, 600])
def test_the_longest_sequence_fits_the_pool(make_folder: Any, num_blocks: int) -> None:
    checkpoint = make_folder()
    capacity = checkpoint.capacity(num_kv_blocks=num_blocks)
    model = ModelConfig.from_dir(checkpoint.path)
    needed = num_blocks_for(
        model, NativeConfig(checkpoint.path, block_size=4), capacity.max_model_len
    )
    assert needed < num_blocks
