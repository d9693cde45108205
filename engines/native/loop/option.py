"""What an option may do in the step loop: one object with a few calls, in the order of the options.

Every call does nothing by default. The loop looks once which options override one (`calls`), so an
option that is off, or has no use for a call, costs nothing. No call is made per token: those of
the cache come per block, those of a step once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Sequence_
from typing import Any, Protocol

from engines.native.backends.base import Capacity, Move
from engines.native.loop.block_pool import BlockPool, Prefix
from engines.native.loop.limits import SchedulerLimits
from engines.native.loop.sequence import Sequence
from engines.native.loop.step_plan import Chunk
from engines.native.step_costs import StepCosts


class Books(Protocol):
    """What an option may ask of the block manager."""

    block_size: int
    sliding_window: int | None
    has_separate_answer_keys: bool
    pool: BlockPool

    def prefix(self, sequence: Sequence, has: Callable[[bytes], bool]) -> Prefix: ...
    def fill(self, key: bytes) -> int: ...
    def has_one_of(self, sequence: Sequence, blocks: set[int]) -> bool: ...
    def tell_saved(self, key: bytes, /) -> None: ...
    def tell_removed(self, key: bytes, medium: str, /) -> None: ...


class Loop(Protocol):
    """What an option sees of the scheduler. `costs` may be replaced later."""

    @property
    def blocks(self) -> Books: ...

    limits: SchedulerLimits
    costs: StepCosts


class Option:
    """Base of every option of the loop. All but start() and stop() run in the engine's thread."""

    def start(self) -> None:
        """Before the model is loaded; raises EngineStartError."""

    def attach(self, loop: Loop, capacity: Capacity) -> None:
        """The loop is assembled, and nothing is cached yet."""

    def stop(self) -> None:
        """The engine ends, or did not start."""

    # The cache, for each block.

    def stored(self, sequence: Sequence, index: int, key: bytes) -> None:
        """The sequence's block of this index is found on the device from now on."""

    def saved(self, key: bytes) -> None:
        """A block of the device is on the host too."""

    def removed(self, key: bytes, medium: str) -> None:
        """A block is no longer found there."""

    def evicted(self, key: bytes, block: int) -> None:
        """A block that was worth keeping is handed out again: the next step may overwrite it."""

    def better_prefix(self, sequence: Sequence, near: Prefix) -> Prefix:
        """A longer prefix than the device's, if getting it takes less time than computing it."""
        return near

    def bring(self, keys: list[bytes]) -> Mapping[bytes, int]:
        """Device blocks for keys of a `better_prefix` that were not there (BlockManager.fill)."""
        return {}

    def faults(self) -> Iterable[str]:
        """Inconsistencies of its books."""
        return ()

    # Drafts: proposed tokens that one step verifies at once.

    def waits(self, decoding: Sequence_[Sequence]) -> bool:
        """Whether drafts will pay once the tokens of the step in flight are known.

        The next step is then not launched before.
        """
        return False

    def drafts(self, decoding: Sequence_[Sequence]) -> Mapping[Sequence, tuple[int, ...]]:
        """The next tokens of those for which drafts pay; all their tokens are known."""
        return {}

    # The step.

    def gap_s(self, gap_s: float) -> float:
        """What is left of the longest gap that the next step may make."""
        return gap_s

    def planned(self, seconds: float) -> None:
        """The step is planned, and takes so long."""

    def is_full(self) -> bool:
        """Whether no further sequence may begin in this step."""
        return False

    def defers(self, sequence: Sequence) -> bool:
        """Whether a sequence that has begun is computed from the next step on only."""
        return False

    def needs_moves(self, sequences: Iterable[Sequence]) -> bool:
        """Whether a step of these sequences reads what its own moves bring."""
        return False

    def take_moves(self) -> tuple[Move, ...]:
        """The copies that the next step has to carry out first."""
        return ()

    def lose(self) -> None:
        """A step with moves failed: whether they were made is not known."""

    def computed(
        self, seconds: float, chunks: Sequence_[Chunk], steady: Sequence_[Sequence]
    ) -> None:
        """A step took so long: with these chunks, and one token of each of `steady`.

        `steady`: the same list as long as these stay together.
        """

    def after_step(self) -> None:
        """A step was launched, and the one before taken in."""

    # Both may be called from any thread; the names are those of the part's series.

    def counts(self) -> Mapping[str, float]:
        """What it has counted, for EngineStats.extras."""
        return {}

    def levels(self) -> Mapping[str, float]:
        """What it holds now, for EngineStats.levels."""
        return {}


class OptionCalls(tuple[Callable[..., Any], ...]):
    """Bound methods of some options; to call it calls each."""

    __slots__ = ()

    def __call__(self, *values: Any) -> None:
        for call in self:
            call(*values)


def calls(options: Iterable[Option], name: str) -> OptionCalls:
    """The bound methods of this name, of those options that have one of their own."""
    base = getattr(Option, name)
    return OptionCalls(
        getattr(option, name) for option in options if getattr(type(option), name) is not base
    )
