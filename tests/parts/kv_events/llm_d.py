"""What llm-d's endpoint picker makes of KV events, rule by rule.

After llm-d-router's pkg/kvevents (engineadapter/vllm_adapter.go, pool.go, event_dedup_filter.go)
and pkg/kvcache/kvblock (in_memory.go, extra_keys.go), for one pod.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

Key = tuple[Any, ...]  # of a block, by its tokens and all before it
_INDEXED = ("full_attention", "mla_attention", "sink_full_attention")


class Picker:
    """The blocks that it believes a pod to have."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._kinds: dict[int, str] = {}  # of groups, as stores tell them
        self._clear()

    def take(self, payload: bytes) -> None:
        """Decode a batch and apply its events."""
        at_s, events, rank = msgspec.msgpack.decode(payload)
        assert isinstance(at_s, float)
        assert rank == 0
        for tag, *fields in events:
            if tag == "BlockStored":
                self._store(*fields)
            elif tag == "BlockRemoved":
                self._remove(*fields)
            else:
                assert (tag, fields) == ("AllBlocksCleared", [])
                self._clear()

    def num_believed(self, tokens: Sequence[int]) -> int:
        """Leading blocks of a prompt that it expects in the pod's cache: it knows no salts."""
        key: Key = ()
        for num, first in enumerate(range(0, len(tokens), self._block_size)):
            key = (hash(key), tuple(tokens[first : first + self._block_size]), ())
            if key not in self._index:
                return num
        return len(tokens) // self._block_size

    def _clear(self) -> None:
        self.held: dict[str, set[tuple[int, int]]] = {"gpu": set(), "cpu": set()}
        self._index: dict[Key, set[tuple[str, int]]] = {}  # (tier, group) by key
        self._keys: dict[int, Key] = {}  # by the engine's hash
        self._references: Counter[tuple[str, int, int]] = Counter()

    def _store(
        self,
        hashes: list[int],
        parent: int | None,
        tokens: list[int],
        size: int,
        lora_id: None,
        medium: str,
        lora_name: None,
        extra_keys: list[list[str] | None] | None,
        group: int,
        kind: str,
        window: int | None,
    ) -> None:
        tier = medium.lower()
        assert len({*hashes, parent}) == len(hashes) + 1, "Dynamo drops such an event"
        assert not self.held[tier] & {(group, each) for each in hashes}, "stored twice"
        self.held[tier] |= {(group, each) for each in hashes}
        assert (lora_id, lora_name) == (None, None)
        self._kinds[group] = kind
        if kind not in _INDEXED:
            assert window
            return
        assert not tokens or len(tokens) == size * len(hashes) == self._block_size * len(hashes)
        if parent is not None and parent not in self._keys:
            return  # as llm-d: nothing is known of what comes before
        if tokens:
            self._add(self._chain(hashes, parent, tokens, extra_keys), tier, group)
        else:
            self._add({each: self._keys[each] for each in hashes}, tier, group)

    def _chain(
        self,
        hashes: list[int],
        parent: int | None,
        tokens: list[int],
        extra_keys: list[list[str] | None] | None,
    ) -> dict[int, Key]:
        key = () if parent is None else self._keys[parent]
        found = {}
        for number, each in enumerate(hashes):
            extra = (extra_keys[number] if extra_keys else None) or ()
            first = number * self._block_size
            key = (hash(key), tuple(tokens[first : first + self._block_size]), tuple(extra))
            found[each] = key
        return found

    def _add(self, keys: dict[int, Key], tier: str, group: int) -> None:
        self._keys |= keys
        for each, key in keys.items():
            self._index.setdefault(key, set()).add((tier, group))
            self._references[tier, group, each] += 1

    def _remove(self, hashes: list[int], medium: str, group: int) -> None:
        tier = medium.lower()
        assert {(group, each) for each in hashes} <= self.held[tier], "removed without a store"
        self.held[tier] -= {(group, each) for each in hashes}
        if self._kinds[group] not in _INDEXED:
            return
        for each in self._unreferenced(hashes, tier, group):
            key = self._keys.get(each)
            if key is None:
                continue
            left = self._index.get(key, set())
            left.discard((tier, group))
            if not left:
                self._index.pop(key, None)
                del self._keys[each]

    def _unreferenced(self, hashes: Iterable[int], tier: str, group: int) -> Iterable[int]:
        for each in hashes:
            self._references[tier, group, each] -= 1
            if self._references[tier, group, each] <= 0:
                del self._references[tier, group, each]
                yield each
