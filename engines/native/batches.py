"""What the backend is told of a step: what is new of the scheduled chunks, in plain numbers."""

from __future__ import annotations

from engines.native.backends.base import Batch, Move, Row, SlotStart
from engines.native.step_plan import Chunk


def build_batch(
    chunks: list[Chunk], moves: tuple[Move, ...] = (), *, needs_moves: bool = False
) -> Batch:
    """A step with these chunks, which the backend is taken to know from here on.

    `needs_moves`: a chunk reads a block that a move of this step loads.
    """
    starts = [_start(chunk) for chunk in chunks if not chunk.sequence.is_started]
    return Batch(tuple(starts), tuple(map(_row, chunks)), moves, needs_moves)


def _start(chunk: Chunk) -> SlotStart:
    sequence = chunk.sequence
    assert sequence.slot is not None
    assert sequence.num_pending_tokens == chunk.is_last, "a slot starts with tokens all known"
    sequence.is_started = True
    sequence.num_sent_blocks = len(sequence.full_blocks)
    return SlotStart(
        sequence.slot,
        tuple(sequence.token_ids),
        sequence.num_prompt_tokens,
        tuple(sequence.full_blocks),
        tuple(sequence.window_blocks),
        sequence.sampling,
        sequence.seed,
    )


def _row(chunk: Chunk) -> Row:
    sequence = chunk.sequence
    assert sequence.slot is not None
    full: tuple[int, ...] = ()
    window: tuple[int, ...] = ()
    num_sent, num_blocks = sequence.num_sent_blocks, len(sequence.full_blocks)
    if num_blocks > num_sent:
        full = tuple(sequence.full_blocks[num_sent:])
        window = tuple(sequence.window_blocks[num_sent:])
        sequence.num_sent_blocks = num_blocks
    is_masked = chunk.is_last and sequence.is_masked
    return Row(
        sequence.slot,
        chunk.start,
        chunk.end,
        chunk.is_last,
        full,
        window,
        is_masked,
        chunk.drafts,
        chunk.num_wanted,
        chunk.prompt_logprobs,
    )
