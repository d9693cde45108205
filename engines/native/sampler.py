"""From logits to the next tokens.

The order is vLLM's: log-probabilities from the model's own logits; the mask of a grammar;
logit_bias and penalties; temperature; min_p, top_k and top_p; the draw. A draw depends only on the
request's seed, the position of the token in the answer and the logits: neither batch
neighbours nor a preemption can change it.
"""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from engines.base import TokenLogprob
from engines.native.grammar import GrammarDeadEnd
from engines.native.logits import Logits
from engines.native.sequence import Sequence

Floats = NDArray[np.floating[Any]]

_BLOCK = 128  # a row is searched in two levels: blocks of this many tokens, then tokens


class SampledToken(NamedTuple):
    """The token chosen for one sequence; logprob when its request asked for it."""

    token_id: int
    logprob: TokenLogprob | None = None


@torch.inference_mode()
def sample(logits: Logits, sequences: list[Sequence]) -> list[SampledToken]:
    """Choose the next token of each sequence.

    logits: a row for each sequence; they may be overwritten. Raises FloatingPointError naming
    the requests whose logits are not finite.
    """
    is_free = [_is_free(sequence) for sequence in sequences]
    if all(is_free):
        return _sample_free(logits, sequences)
    if logits.columns is None or not any(is_free):
        return _sample_spread(logits.spread().cpu(), sequences)
    bound = [not free for free in is_free]
    free_tokens = iter(_sample_free(logits.rows(is_free), _taken(sequences, is_free)))
    # Guides take their steps here, so it comes last.
    others = iter(_sample_spread(logits.rows(bound).spread().cpu(), _taken(sequences, bound)))
    return [next(free_tokens if free else others) for free in is_free]


def _is_free(sequence: Sequence) -> bool:
    """Whether the token is the best one, or drawn from the model's distribution as it is."""
    if sequence.guide is not None or sequence.is_biased or _wants_logprobs(sequence):
        return False
    return sequence.is_greedy or not _is_filtered(sequence)


def _taken(sequences: list[Sequence], is_taken: list[bool]) -> list[Sequence]:
    return [s for s, taken in zip(sequences, is_taken, strict=True) if taken]


def _sample_free(logits: Logits, sequences: list[Sequence]) -> list[SampledToken]:
    """Choose without spreading the columns: with nano that takes a sixth of the time."""
    token_ids = _argmax(logits, sequences)
    if logits.columns is None:
        _draw_random(logits.values.cpu(), sequences, token_ids)
    elif drawing := [i for i, sequence in enumerate(sequences) if not sequence.is_greedy]:
        scores = _tempered(logits.values.cpu(), sequences, drawing)
        weights = torch.softmax(scores, dim=1).numpy()
        drawn = logits.columns.draw(weights, [_uniform(sequences[i]) for i in drawing])
        for i, token_id in zip(drawing, drawn, strict=True):
            token_ids[i] = token_id
    return [SampledToken(token_id) for token_id in token_ids]


def _sample_spread(scores: torch.Tensor, sequences: list[Sequence]) -> list[SampledToken]:
    """Choose from scores (sequences, vocabulary), which are overwritten."""
    rows: Floats = scores.numpy()  # the same memory
    raw = {i: _log_softmax(scores[i]) for i, s in enumerate(sequences) if _wants_logprobs(s)}
    _mask(rows, sequences)
    for row, sequence in zip(rows, sequences, strict=True):
        if sequence.is_biased:
            _bias(row, sequence)
    token_ids = _argmax(Logits(scores), sequences)
    _draw_random(scores, sequences, token_ids)
    tokens = [
        SampledToken(token_id, _logprob(raw[i], token_id, sequence) if i in raw else None)
        for i, (token_id, sequence) in enumerate(zip(token_ids, sequences, strict=True))
    ]
    return _step_guides(tokens, sequences)


def _mask(rows: Floats, sequences: list[Sequence]) -> None:
    """Exclude what the sequences' grammars exclude; raises GrammarDeadEnd before any step."""
    bits: NDArray[np.int32] | None = None
    stuck = []
    for row, sequence in zip(rows, sequences, strict=True):
        if sequence.guide is None:
            continue
        if bits is None:
            bits = np.empty((1, -(-len(row) // 32)), np.int32)
        if not sequence.guide.mask(row, bits):
            stuck.append(sequence)
    if stuck:
        raise GrammarDeadEnd(stuck)


def _step_guides(tokens: list[SampledToken], sequences: list[Sequence]) -> list[SampledToken]:
    """The last thing done: a step that fails is taken again, and no guide may be ahead of it."""
    for token, sequence in zip(tokens, sequences, strict=True):
        if sequence.guide is not None:
            sequence.guide.accept(token.token_id)
    return tokens


def _argmax(logits: Logits, sequences: list[Sequence]) -> list[int]:
    token_ids, scores = logits.best()
    is_finite = np.isfinite(scores)
    if not is_finite.all():
        bad = [sequences[i].request.request_id for i in np.flatnonzero(~is_finite)]
        raise FloatingPointError(f"the logits of these requests are not finite: {', '.join(bad)}")
    return token_ids


def _wants_logprobs(sequence: Sequence) -> bool:
    return sequence.sampling.logprobs is not None


def _log_softmax(row: torch.Tensor) -> Floats:
    return torch.log_softmax(row, dim=0).numpy()


def _logprob(logprobs: Floats, token_id: int, sequence: Sequence) -> TokenLogprob:
    num_top = sequence.sampling.logprobs or 0
    ids: list[int] = _largest(logprobs, num_top).tolist()
    top = tuple((i, float(logprobs[i])) for i in ids)
    return TokenLogprob(token_id, float(logprobs[token_id]), top)


def _bias(row: Floats, sequence: Sequence) -> None:
    """Apply logit_bias and the penalties to one row, in place."""
    sampling, generated = sequence.sampling, sequence.token_ids[sequence.num_prompt_tokens :]
    if sampling.logit_bias:
        row[list(sampling.logit_bias)] += np.fromiter(sampling.logit_bias.values(), np.float32)
    if sampling.repetition_penalty != 1.0:
        seen = list(set(sequence.token_ids))
        values = row[seen]
        factor = np.where(values > 0, 1 / sampling.repetition_penalty, sampling.repetition_penalty)
        row[seen] = values * factor
    if generated and (sampling.presence_penalty or sampling.frequency_penalty):
        counts = Counter(generated)
        num_times = np.fromiter(counts.values(), np.float32)
        row[list(counts)] -= sampling.presence_penalty + sampling.frequency_penalty * num_times


def _draw_random(logits: torch.Tensor, sequences: list[Sequence], token_ids: list[int]) -> None:
    """Replace the greedy choice of every sequence that samples."""
    drawing = [i for i, sequence in enumerate(sequences) if not sequence.is_greedy]
    if not drawing:
        return
    rows: Floats = torch.softmax(_tempered(logits, sequences, drawing), dim=1).numpy()
    for i, row in zip(drawing, rows, strict=True):
        if _is_filtered(sequences[i]):
            row *= row >= _cut(row, sequences[i])
    for i, row, sums in zip(drawing, rows, _block_sums(rows), strict=True):
        token_ids[i] = _draw(row, sums, _uniform(sequences[i]))


def _tempered(scores: torch.Tensor, sequences: list[Sequence], drawing: list[int]) -> torch.Tensor:
    """The rows of those that draw, divided by their temperatures; may overwrite scores."""
    if len(drawing) < len(sequences):
        scores = scores[drawing]
    temperatures = [sequences[i].sampling.temperature for i in drawing]
    if any(temperature != 1.0 for temperature in temperatures):
        scores.div_(torch.tensor(temperatures).unsqueeze(1))
    return scores


def _is_filtered(sequence: Sequence) -> bool:
    sampling = sequence.sampling
    return sampling.top_p < 1.0 or sampling.top_k > 0 or sampling.min_p > 0.0


def _cut(row: Floats, sequence: Sequence) -> float:
    """The probability a token needs to stay in the draw; equals stay or go together."""
    sampling = sequence.sampling
    cut = sampling.min_p * float(row.max())
    if 0 < sampling.top_k < len(row):
        cut = max(cut, float(row[_largest(row, sampling.top_k)[-1]]))
    return _nucleus_cut(row, cut, sampling.top_p) if sampling.top_p < 1.0 else cut


def _nucleus_cut(row: Floats, cut: float, top_p: float) -> float:
    """The least probability among the fewest tokens that make up top_p of those above cut."""
    mass = float(row[row >= cut].sum(dtype=np.float64)) if cut > 0.0 else 1.0
    # All tokens below this share of the rest are together lighter than the rest: no need to
    # sort them.
    floor = 0.99 * (1.0 - top_p) * mass / len(row)
    best_first = np.sort(row[row >= max(cut, floor)])[::-1]
    reached = np.cumsum(best_first, dtype=np.float64)
    last = min(int(np.searchsorted(reached, top_p * mass)), len(best_first) - 1)
    return float(best_first[last])


def _largest(row: Floats, k: int) -> NDArray[np.intp]:
    """Ids of the k largest values, largest first."""
    num_whole = len(row) // _BLOCK
    if not 0 < k < num_whole:
        return _top_ids(row, k)
    # The k largest values lie in the k blocks with the largest maxima, or in the short last one.
    maxima = row[: num_whole * _BLOCK].reshape(num_whole, _BLOCK).max(axis=1)
    starts = _top_ids(maxima, k)[:, np.newaxis] * _BLOCK
    ids = np.concatenate(
        [(starts + np.arange(_BLOCK)).ravel(), np.arange(num_whole * _BLOCK, len(row))]
    )
    best: NDArray[np.intp] = ids[_top_ids(row[ids], k)]
    return best


def _top_ids(values: Floats, k: int) -> NDArray[np.intp]:
    ids: NDArray[np.intp] = torch.from_numpy(values).topk(k).indices.numpy()
    return ids


def _block_sums(rows: Floats) -> Floats:
    """(rows, vocab_size) -> (rows, blocks), the last block being what is left over."""
    num_whole = rows.shape[1] // _BLOCK
    whole = torch.from_numpy(rows[:, : num_whole * _BLOCK]).view(len(rows), num_whole, _BLOCK)
    rest = rows[:, num_whole * _BLOCK :].sum(axis=1, keepdims=True)
    return np.concatenate([whole.sum(dim=2).numpy(), rest], axis=1)


def _draw(weights: Floats, block_sums: Floats, uniform: float) -> int:
    """The token at which the running sum of weights passes uniform times their total."""
    sums = np.cumsum(block_sums, dtype=np.float64)
    target = uniform * sums[-1]
    block = int(np.searchsorted(sums, target, side="right"))
    left = target - (sums[block - 1] if block else 0.0)
    inside = np.cumsum(weights[block * _BLOCK : (block + 1) * _BLOCK], dtype=np.float64)
    # The two sums of a block differ in their last bits: never step past its last real weight.
    last = int(np.searchsorted(inside, inside[-1], side="left"))
    return block * _BLOCK + min(int(np.searchsorted(inside, left, side="right")), last)


def _uniform(sequence: Sequence) -> float:
    """A number in [0, 1) that depends on nothing but the seed and the position."""
    key = f"{sequence.seed}/{sequence.num_generated_tokens}"
    digest = blake2b(key.encode(), digest_size=6).digest()
    return int.from_bytes(digest) / (1 << 48)
