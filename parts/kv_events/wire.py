"""KV events as vLLM sends them: msgpack arrays with fields by position.

Newer releases of vLLM send maps instead. Dynamo and llm-d read both, and their older releases read
arrays only.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

import msgspec

from parts.kv_events.events import BlockEvent, Stored

_FULL_GROUP: Final = 0
_WINDOW_GROUP: Final = 1


class BlockStored(msgspec.Struct, array_like=True, tag=True, gc=False, frozen=True):
    """Field by field vLLM's."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: None
    medium: str
    lora_name: str | None
    extra_keys: list[list[str] | None] | None
    group_idx: int
    kv_cache_spec_kind: str
    kv_cache_spec_sliding_window: int | None


class BlockRemoved(msgspec.Struct, array_like=True, tag=True, gc=False, frozen=True):
    """Blocks of one group of layers that are no longer in this memory."""

    block_hashes: list[int]
    medium: str
    group_idx: int


class AllBlocksCleared(msgspec.Struct, array_like=True, tag=True, gc=False, frozen=True):
    """Nothing that was sent before is valid any more."""


WireEvent = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """What one step changed."""

    ts: float  # seconds since 1970
    events: list[WireEvent]
    data_parallel_rank: int


def number_of(block_hash: bytes) -> int:
    """The hash as vLLM sends its own by default, and as llm-d reads longer ones."""
    return int.from_bytes(block_hash[-8:], "big")


def salt_key(salt: str) -> str:
    """The hash of a cache salt, as an extra key: a salt may be a client's secret.

    Dynamo takes a key with this prefix as the namespace of the blocks, llm-d takes any string
    as part of the prompt. Neither finds such blocks for a request without the salt.
    """
    digest = blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=16)
    return f"dynamo-cache-salt:{digest.hexdigest()}"


def encoded(at_s: float, events: Iterable[WireEvent], rank: int) -> bytes:
    return msgspec.msgpack.encode(EventBatch(at_s, [*events], rank))


def wire_event(event: BlockEvent) -> WireEvent:
    hashes = [number_of(each) for each in event.hashes]
    if not isinstance(event, Stored):
        group = _WINDOW_GROUP if event.is_window else _FULL_GROUP
        return BlockRemoved(hashes, event.medium, group)
    is_window = event.sliding_window is not None
    return BlockStored(
        block_hashes=hashes,
        parent_block_hash=None if event.parent is None else number_of(event.parent),
        token_ids=event.token_ids,
        block_size=event.block_size,
        lora_id=None,
        medium=event.medium,
        lora_name=event.adapter,
        extra_keys=_extra_keys(event),
        group_idx=_WINDOW_GROUP if is_window else _FULL_GROUP,
        kv_cache_spec_kind="sliding_window" if is_window else "full_attention",
        kv_cache_spec_sliding_window=event.sliding_window,
    )


def _extra_keys(event: Stored) -> list[list[str] | None] | None:
    # vLLM has the salt at the first block of a prompt alone. Dynamo reads the namespace of all
    # blocks of an event from its first one, also in the middle of a prompt.
    if event.salt is None:
        return None
    return [[salt_key(event.salt)], *[None] * (len(event.hashes) - 1)]
