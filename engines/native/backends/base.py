"""The contract between the engine's core and the device that computes its steps.

The core decides which sequence computes what and keeps the accounts: blocks, prefixes, grammars,
ends. A
backend holds everything that lives in tensors: weights, K/V, and for each running sequence a
slot with its tokens, block tables and sampling parameters. What crosses the line is plain
numbers, and only what has changed: a decode in the middle of a block is one small Row.

A backend is made so that the core may run one step ahead of what it knows:

    core     launch(N+1)              collect(N)   bookkeeping of N   launch(N+2)  ...
    device   ---- step N ----|---- step N+1 -----------------------|---- step N+2 ...

- The token that step N samples for a slot is the input of step N+1 without passing the host: rows
  name positions, never token ids; the backend has the ids, from a SlotStart or sampled by itself.
- launch() enqueues and never waits for the device; collect() waits for its own step alone.
- Steps take effect in the order of their launches. So blocks and slots given up after step N+1
  was launched may be handed out in step N+2, though N+1 still writes to them.
- A grammar's mask depends on the token before: it may come after the step's launch, while the
  forward pass runs (Step.mask), and before the sampler.

Positions, for a row that computes [start, end):

    0 ........ start ............ end ....... end + len(drafts)
    K/V cached | computed by this row | drafts, computed too
                                 ^ the first sampled token gets this position (if is_last)

The standard library and numpy are all this module may import.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from engines.base import SamplingParams, TokenLogprob
from engines.prompt_logprobs import PromptLogprobs

MAX_LOGPROBS = 20  # likeliest tokens beside one, at most: OpenAI's limit
NULL_BLOCK = 0  # no K/V: its place in a table when the window has left a block behind

StepCost = Callable[[int, NDArray[np.float64]], NDArray[np.float64]]
"""The times, in any unit, of steps that decode a number of sequences and verify a number of drafts
in all:
each of an array of such numbers; infinite where there is no such step."""

BlockContent = NDArray[np.uint8]  # (blocks, bytes of a block)
TokenMask = NDArray[np.int32]  # (ceil(vocab_size / 32)): bit i % 32 of word i // 32 allows token i
TokenMasks = NDArray[np.int32]  # (1 + drafts, words): of the token at `end`, and after each draft


def without_drafts(_num_sequences: int, num_drafts: NDArray[np.float64]) -> NDArray[np.float64]:
    """The cost of a step on a device that does not verify draft tokens."""
    return np.where(num_drafts > 0, np.inf, 1.0)


@dataclass(frozen=True, slots=True)
class HostCapacity:
    """What a backend has room for in host memory, beside the device's blocks."""

    num_blocks: int
    block_bytes: int
    load_s: float  # that copying one block to the device takes


class Addend(NamedTuple):
    """What is added to a matrix (out, in) of the model: up @ down; of experts, one pair for each.

    Of a checkpoint's experts, stored as (experts, in, out), that is to the transposed matrices.
    """

    up: NDArray[np.float32]  # (out, rank), or (experts, out, rank)
    down: NDArray[np.float32]  # (rank, in), or (experts, rank, in)


class AdapterTable(Protocol):
    """The adapters that a backend can compute with, by the keys that SlotStarts name.

    put() and remove() are called in the engine's thread, between two steps. On a device there are
    max_adapters at most, and those that were put before may be put again.
    """

    has_experts: ClassVar[bool]  # it takes changes of experts too, not of attention alone

    def num_bytes(self, rank: int) -> int:
        """What one takes of host memory that changes all of attention, with this rank."""

    def prepared(self, changes: Mapping[str, Addend]) -> Any:
        """The changes as steps need them, in any thread; names are those of a checkpoint."""

    def put(self, key: str, prepared: Any) -> None: ...

    def remove(self, key: str) -> None:
        """Forget an adapter; no sequence that is computed with it is left."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a loaded backend has room for; the scheduler works within it."""

    num_blocks: int  # of KV, NULL_BLOCK included
    block_size: int  # tokens in a block
    max_model_len: int  # prompt and generated tokens together
    max_drafts: int = 0  # drafts that one row may bring
    step_cost: StepCost = without_drafts
    host: HostCapacity | None = None  # it carries out a Batch's moves
    takes_steady: bool = False  # a Batch may have steady rows
    adapters: AdapterTable | None = None  # None: it computes the model as it is


class Move(NamedTuple):
    """The K/V of one block, copied from the device to the host or back."""

    block: int
    place: int  # in host memory: 0 .. HostCapacity.num_blocks - 1
    is_save: bool  # from the device to the host


@dataclass(frozen=True, slots=True)
class SlotStart:
    """A sequence takes a slot: a new one, one that comes back after a preemption, or the one that
    held it, after a failed step. All that the slot held before is void, and every token known.

    full_blocks and window_blocks: block i holds the K/V of positions [i * block_size,
    (i + 1) * block_size), in the layers with full attention and in those with a window.
    """

    slot: int  # 0 .. max_num_seqs - 1
    token_ids: tuple[int, ...]  # the prompt, and what was generated until now
    num_prompt_tokens: int
    full_blocks: tuple[int, ...]
    window_blocks: tuple[int, ...]  # NULL_BLOCK where no later token sees the block
    sampling: SamplingParams
    seed: int  # draws depend on it, on the token's place in the answer and on the logits alone
    adapter: str | None = None  # its key in Capacity.adapters


class Row(NamedTuple):
    """The positions [start, end) of one slot, to be computed in this step.

    The K/V of all positions before `start` are in the slot's blocks.
    """

    slot: int
    start: int
    end: int
    is_last: bool  # no token after `end` is known: sample the next one
    full_blocks: tuple[int, ...] = ()  # appended to the slot's table before this step
    window_blocks: tuple[int, ...] = ()  # the same, of the layers with a window
    is_masked: bool = False  # a mask decides which tokens may be sampled; see Step.mask
    drafts: tuple[int, ...] = ()  # drafts of the tokens at end, end + 1, ...; see Sampled
    # The log-probabilities of the prompt's tokens at start + 1 up to end are wanted, each with so
    # many of the likeliest; None: they are not.
    prompt_logprobs: int | None = None


class SteadyRows(NamedTuple):
    """Rows that decode one token each, of which nothing else is to be told.

    The arrays are not changed after the launch.
    """

    slots: NDArray[np.int64]
    starts: NDArray[np.int64]
    grown: dict[int, Row]  # those that have new blocks, by their place in the arrays

    def rows(self) -> list[Row]:
        """The same as single rows."""
        pairs = zip(self.slots.tolist(), self.starts.tolist(), strict=True)
        rows = [Row(slot, start, start + 1, True) for slot, start in pairs]
        for place, row in self.grown.items():
            rows[place] = row
        return rows


class Batch(NamedTuple):
    """One step. Each slot has at most one row; rows are in the scheduler's order."""

    starts: tuple[SlotStart, ...]  # take effect before the rows
    rows: tuple[Row, ...]  # at least one, or there are steady rows
    # Take effect in their order, after all earlier steps. Saved blocks may be written by the rows
    # of this batch; loaded ones are read by those of the next, or with `needs_moves` of this one.
    moves: tuple[Move, ...] = ()
    needs_moves: bool = False
    steady: SteadyRows | None = None  # before the rows


class Sampled(NamedTuple):
    """What one row with is_last has brought, or one that wants prompt_logprobs.

    token_ids: the accepted drafts and one token more; empty if the logits were not finite. A
    draft is accepted if it is the token that is sampled at its place, so that they are those
    that would have been sampled one by one, draw for draw. A row with penalties, which depend on
    the tokens before, has no drafts; a backend may accept none of a row that has.
    The next row of the slot begins at the position of the last of the tokens.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None  # one per token if the slot asks for them
    prompt_logprobs: PromptLogprobs | None = None  # those that the row wanted


class Step(Protocol):
    """A launched step."""

    def mask(self, masks: Mapping[int, TokenMasks]) -> None:
        """Give the masks of a batch with masked rows, by the row's index.

        Called once, before the next launch and before collect(). A masked row without a mask is
        sampled freely: its sequence has ended meanwhile, and the token is not read. The arrays
        may be reused when the call returns.
        """

    def collect(self) -> list[Sampled]:
        """Wait for the step; the result of each row with is_last or prompt_logprobs, in order.

        Without is_last a result has no tokens.
        Called once. A step that never got its masks is collected only to be thrown away.
        """

    def steady_tokens(self) -> list[int]:
        """The token of each of the batch's steady rows, negative if its logits were not finite.

        Called after collect(), of batches that have steady rows.
        """


class BlockAccess(Protocol):
    """Reads and writes K/V of whole blocks, for other engines.

    Copies take effect behind all steps that were launched, and behind `moves`, in that order.
    Any call may raise.
    """

    @property
    def layout(self) -> str:
        """Where what lies in a block: engines exchange blocks of the same layout."""

    @property
    def block_bytes(self) -> int:
        """The size of one block's content."""

    def copy_out(
        self, blocks: Sequence[int], moves: tuple[Move, ...]
    ) -> Callable[[], BlockContent]:
        """Enqueue the copies of these blocks; what is returned waits for them in any thread."""

    def room(self, num_bytes: int) -> BlockContent:
        """New memory of this size, flat. Content that lies there costs `staged` no copy."""

    def staged(self, content: BlockContent) -> Any:
        """Prepare content for `copy_in`, in any thread. The content may not change after that."""

    def copy_in(
        self, rows: Sequence[int], blocks: Sequence[int], staged: Any, moves: tuple[Move, ...]
    ) -> None:
        """Enqueue the copies of these rows of the content into these blocks."""


class RankLost(Exception):
    """One of the processes or devices that compute a model together is gone: the engine ends."""


class Backend(Protocol):
    """A loaded model on its device. All calls come from one thread.

    Any call may raise. The core then takes every sequence of this step, and of a step launched
    after it, as not computed: a slot of theirs gets a SlotStart before its next row, and steps
    that were launched are still collected, to be thrown away. MemoryError, torch.OutOfMemoryError
    and what StepErrors knows cost one request; other errors cost all requests
    of the step.
    """

    @property
    def capacity(self) -> Capacity:
        """What the loaded backend has room for."""

    @property
    def access(self) -> BlockAccess | None:
        """How K/V of whole blocks get in and out; None where they cannot."""

    def launch(self, batch: Batch) -> Step:
        """Enqueue a step. Where no row is masked, its sampling too; else that waits for mask().

        Nothing of the batch is read once the call has returned.
        """

    def close(self) -> None:
        """End the processes that it has started; nothing is computed after this."""


class StepErrors:
    """What the errors of a backend's steps mean; those of torch: backends/torch_errors.py."""

    def is_out_of_memory(self, error: BaseException | None) -> bool:
        """Whether a step failed for lack of memory, on whichever device."""
        return isinstance(error, MemoryError)

    def is_lasting(self, error: BaseException | None) -> bool:
        """Whether every later step may fail like this one, whatever it computes."""
        return isinstance(error, RankLost)

    def give_back(self) -> None:
        """Free the device memory of a failed step; its exception must be gone by now."""
