"""Notes what the prefix cache stores and drops, for routers."""

from __future__ import annotations

from engines.native.backends.base import Capacity
from engines.native.loop.block_pool import DEVICE, HOST, WINDOW
from engines.native.loop.option import Loop, Option
from engines.native.loop.sequence import Sequence
from parts.kv_events.events import BlockEvent, EventSink, Removed, Stored


class BlockEvents(Option):
    """Sends the changes of each step, in order; each block appears once for each place."""

    def __init__(self, sink: EventSink) -> None:
        self._sink = sink
        self._events: list[BlockEvent] = []
        self._told: dict[str, set[bytes]] = {DEVICE: set(), HOST: set()}

    def start(self) -> None:
        """Take the address, before minutes of loading; raises EngineStartError."""
        self._sink.start()

    def attach(self, loop: Loop, capacity: Capacity) -> None:
        blocks = loop.blocks
        self._block_size, self._sliding_window = blocks.block_size, blocks.sliding_window
        # Where no prompt finds what an answer left, no router hears of it.
        self._is_prompt_only = blocks.has_separate_answer_keys

    def stop(self) -> None:
        self._sink.stop()

    def after_step(self) -> None:
        if self._events:
            events, self._events = self._events, []
            self._sink.publish(events)

    def stored(self, sequence: Sequence, index: int, key: bytes) -> None:
        size = self._block_size
        is_answer = (index + 1) * size > sequence.num_prompt_tokens
        if key in self._told[DEVICE] or (is_answer and self._is_prompt_only):
            return
        self._told[DEVICE].add(key)
        tokens = sequence.token_ids[index * size : (index + 1) * size]
        parent = sequence.block_hashes[index - 1] if index else None
        window = self._sliding_window if key.startswith(WINDOW) else None
        last = self._events[-1] if self._events else None
        if (
            isinstance(last, Stored)
            and last.hashes[-1] == parent  # of the whole prefix: the salt is the same, too
            and (last.medium, last.sliding_window) == (DEVICE, window)
        ):
            last.hashes.append(key[1:])
            last.token_ids += tokens
        else:
            salt, adapter = sequence.request.cache_salt, sequence.request.adapter
            name = None if adapter is None else adapter.name
            stored = Stored([key[1:]], parent, tokens, size, window, salt, adapter=name)
            self._events.append(stored)

    def saved(self, key: bytes) -> None:
        """A block of the device is on the host too. Told before it leaves the device: routers know
        its tokens from there."""
        if key not in self._told[DEVICE] or key in self._told[HOST]:
            return
        self._told[HOST].add(key)
        window = self._sliding_window if key.startswith(WINDOW) else None
        size = self._block_size
        self._events.append(Stored([key[1:]], None, [], size, window, None, HOST))

    def removed(self, key: bytes, medium: str) -> None:
        if key not in self._told[medium]:
            return
        self._told[medium].remove(key)
        is_window = key.startswith(WINDOW)
        last = self._events[-1] if self._events else None
        if isinstance(last, Removed) and (last.is_window, last.medium) == (is_window, medium):
            last.hashes.append(key[1:])
        else:
            self._events.append(Removed([key[1:]], is_window, medium))
