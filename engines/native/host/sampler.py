"""From logits to the next tokens.

The order is vLLM's: log-probabilities from the model's own logits; the mask of a grammar;
logit_bias and penalties; temperature; min_p, top_k and top_p; the draw. A draw depends only on the
request's seed, the position of the token in the answer and the logits: neither batch
neighbours nor a preemption can change it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from engines.base import TokenLogprob
from engines.native.backends.base import Sampled, TokenMask, TokenMasks
from engines.native.host.cuts import Floats, block_sums, draw, largest, least_weight
from engines.native.host.slots import Columns, Logits, Slot, Span
from engines.prompt_logprobs import PromptLogprobs

Places = Callable[[NDArray[np.int64]], NDArray[np.int64]]

T = TypeVar("T")

_NO_TOKEN = Sampled(())


@torch.inference_mode()
def sample(
    logits: Logits, slots: list[Slot], masks: Mapping[int, TokenMask] | None = None
) -> list[Sampled]:
    """Choose the next token of each slot; none where its logits are not finite.

    logits: a row for each slot; they may be overwritten. masks: what a grammar allows, by row.
    """
    masks = masks or {}
    columns = logits.columns
    sampled: dict[int, Sampled] = {}  # those that need columns of their own
    raw: dict[int, Logits] = {}  # scores of the model for rows that are biased already
    if columns is not None:
        for i, slot in enumerate(slots):
            if not slot.is_biased or i in masks:
                continue
            widened = slot.columns_of(columns)
            if widened is None:
                continue
            if widened[0] is columns:
                raw[i] = logits.row(i)
                _bias_columns(logits.values[i].numpy(), slot, columns)
            else:
                sampled[i] = _sample_widened(logits.row(i), slot, *widened)
    if not sampled:
        return _sample_together(logits, slots, masks, raw)
    left = [i for i in range(len(slots)) if i not in sampled]
    if left:
        of_left = {i: place for place, i in enumerate(left)}
        others = _sample_together(
            logits.rows([i not in sampled for i in range(len(slots))]),
            [slots[i] for i in left],
            {of_left[i]: mask for i, mask in masks.items()},
            {of_left[i]: each for i, each in raw.items()},
        )
        sampled.update(zip(left, others, strict=True))
    return [sampled[i] for i in range(len(slots))]


def _sample_together(
    logits: Logits, slots: list[Slot], masks: Mapping[int, TokenMask], raw: Mapping[int, Logits]
) -> list[Sampled]:
    """`raw`: what rows of shared columns were before they were biased."""
    is_shared = logits.columns is not None
    is_free = [
        i not in masks and (i in raw or _is_free(slot, is_shared)) for i, slot in enumerate(slots)
    ]
    if all(is_free):
        return _sample_free(logits, slots, raw)
    each_mask = [masks.get(i) for i in range(len(slots))]
    if logits.columns is None or not any(is_free):
        return _sample_spread(logits.spread().cpu(), slots, each_mask)
    bound = [not free for free in is_free]
    free = _taken([*range(len(slots))], is_free)
    raw = {place: raw[i] for place, i in enumerate(free) if i in raw}
    free_tokens = iter(_sample_free(logits.rows(is_free), _taken(slots, is_free), raw))
    others = iter(
        _sample_spread(
            logits.rows(bound).spread().cpu(), _taken(slots, bound), _taken(each_mask, bound)
        )
    )
    return [next(free_tokens if free else others) for free in is_free]


def _sample_widened(logits: Logits, slot: Slot, own: Columns, at: NDArray[np.int64]) -> Sampled:
    """Choose from one row, where some tokens get columns of their own; `own`: those columns, `at`:
    where they come in.

    Each row by itself: which columns there are changes the last bits of sums.
    """
    assert logits.columns is not None
    scores: NDArray[np.float32] = logits.values[0].numpy()
    row = np.insert(scores, at, scores[logits.columns.shared])
    _bias_widened(row, slot, own)
    [sampled] = _sample_free(Logits(torch.from_numpy(row)[None], own), [slot], {0: logits})
    return sampled


def _bias_columns(row: Floats, slot: Slot, columns: Columns) -> None:
    _bias(row, slot, lambda token_ids: columns.places[token_ids])


def _bias_widened(row: Floats, slot: Slot, own: Columns) -> None:
    ids = own.token_ids.numpy()  # a table of places for each slot would take a megabyte
    _bias(row, slot, lambda token_ids: np.searchsorted(ids, token_ids))


def verify(
    logits: Logits, slot: Slot, drafts: tuple[int, ...], masks: TokenMasks | None = None
) -> Sampled:
    """Sample one token after another for as long as each is the draft, and one more.

    logits: a row after each draft, and one before them. What is drawn is what would be without
    drafts; so every token has the distribution of the model.
    """
    token_ids: list[int] = []
    logprobs: list[TokenLogprob] = []
    num_known = len(slot.token_ids)
    for i, draft in enumerate((*drafts, None)):
        [one] = sample(logits.row(i), [slot], None if masks is None else {0: masks[i]})
        token_ids += one.token_ids
        logprobs += one.logprobs or ()
        if one.token_ids != (draft,):
            break
        slot.token_ids += one.token_ids
    del slot.token_ids[num_known:]
    if not one.token_ids:
        return _NO_TOKEN
    return Sampled(tuple(token_ids), tuple(logprobs) or None)


def _is_free(slot: Slot, is_shared: bool) -> bool:
    """Whether the token is greedy, or sampled from the unmodified distribution.

    `is_shared`: tokens share columns, which are filtered and give log-probabilities without being
    spread.
    """
    if slot.is_biased or (_wants_logprobs(slot) and not is_shared):
        return False
    return slot.is_greedy or is_shared or not slot.is_filtered


def _taken(items: list[T], is_taken: list[bool]) -> list[T]:
    return [item for item, taken in zip(items, is_taken, strict=True) if taken]


def _sample_free(logits: Logits, slots: list[Slot], raw: Mapping[int, Logits]) -> list[Sampled]:
    """Choose without spreading the columns: with nano that takes a sixth of the time.

    `raw`: rows before they were biased, whose log-probabilities are returned.
    """
    told = {i: raw.get(i) or logits.row(i) for i, slot in enumerate(slots) if _wants_logprobs(slot)}
    token_ids = _argmax(logits)
    drawing = _drawing(slots, token_ids)
    if drawing and logits.columns is None:
        _draw_random(logits.values.cpu(), slots, token_ids)
    elif drawing and logits.columns is not None:
        scores = _tempered(logits.values.cpu(), slots, drawing)
        weights = torch.softmax(scores, dim=1).numpy()
        num_others = logits.columns.vocab_size - weights.shape[1]
        for i, row in zip(drawing, weights, strict=True):
            if slots[i].is_filtered:
                row *= row >= least_weight(
                    row, slots[i], float(row[logits.columns.shared]), num_others
                )
        drawn = logits.columns.draw(weights, [_uniform(slots[i]) for i in drawing])
        for i, token_id in zip(drawing, drawn, strict=True):
            token_ids[i] = token_id
    return [
        _NO_TOKEN
        if token_id is None
        else Sampled(
            (token_id,), (_shared_logprob(told[i], token_id, slot),) if i in told else None
        )
        for i, (token_id, slot) in enumerate(zip(token_ids, slots, strict=True))
    ]


def _sample_spread(
    scores: torch.Tensor, slots: list[Slot], masks: list[TokenMask | None]
) -> list[Sampled]:
    """Choose from scores (slots, vocabulary), which are overwritten."""
    rows: Floats = scores.numpy()  # the same memory
    raw = {i: _log_softmax(scores[i]) for i, slot in enumerate(slots) if _wants_logprobs(slot)}
    for row, slot, mask in zip(rows, slots, masks, strict=True):
        if mask is not None:
            _exclude(row, mask)
        if slot.is_biased:
            _bias(row, slot)
    token_ids = _argmax(Logits(scores))
    _draw_random(scores, slots, token_ids)
    sampled = []
    for i, (token_id, slot) in enumerate(zip(token_ids, slots, strict=True)):
        if token_id is None:
            sampled.append(_NO_TOKEN)
        elif i in raw:
            sampled.append(Sampled((token_id,), (_logprob(raw[i], token_id, slot),)))
        else:
            sampled.append(Sampled((token_id,)))
    return sampled


def _exclude(row: Floats, mask: TokenMask) -> None:
    """Set the logits of disallowed tokens to -inf."""
    allowed = np.unpackbits(mask.view(np.uint8), bitorder="little")[: len(row)]
    np.copyto(row, -np.inf, where=allowed == 0)


def _argmax(logits: Logits) -> list[int | None]:
    """The best token of each row; None where the row has a score that is not a number."""
    token_ids, scores = logits.best()
    is_finite = np.isfinite(scores)
    if is_finite.all():
        return [*token_ids]
    return [i if finite else None for i, finite in zip(token_ids, is_finite, strict=True)]


def _wants_logprobs(slot: Slot) -> bool:
    return slot.sampling.logprobs is not None


def _log_softmax(row: torch.Tensor) -> Floats:
    return torch.log_softmax(row, dim=0).numpy()


def _logprob(logprobs: Floats, token_id: int, slot: Slot) -> TokenLogprob:
    num_top = slot.sampling.logprobs or 0
    ids: list[int] = largest(logprobs, num_top).tolist()
    top = tuple((i, float(logprobs[i])) for i in ids)
    return TokenLogprob(token_id, float(logprobs[token_id]), top)


def _shared_logprob(logits: Logits, token_id: int, slot: Slot) -> TokenLogprob:
    """The log-probability of a token and of the likeliest, from one row of columns."""
    columns = logits.columns
    assert columns is not None
    row: Floats = logits.values[0].cpu().numpy()
    ids = columns.token_ids.cpu().numpy()
    shared, num_top = row[columns.shared], slot.sampling.logprobs or 0
    best = largest(row, min(num_top, len(row)))
    num_others = columns.vocab_size - len(ids)
    # Of the tokens that share a column all but one may be among them.
    if len(best) < num_top or (num_top and num_others and shared >= row[best[-1]]):
        return _logprob(_log_softmax(logits.spread()[0].cpu()), token_id, slot)
    most = row.max()
    total = np.log(np.exp(row - most).sum() + num_others * np.exp(shared - most))
    column = int(np.searchsorted(ids, token_id))
    is_own = column < len(ids) and ids[column] == token_id
    chosen = (row[column] if is_own else shared) - most - total
    top = zip(ids[best].tolist(), (row[best] - most - total).tolist(), strict=True)
    return TokenLogprob(token_id, float(chosen), tuple(top))


def _bias(row: Floats, slot: Slot, places: Places = lambda token_ids: token_ids) -> None:
    """Apply logit_bias and the penalties to one row, in place; `places`: of tokens in it."""
    sampling = slot.sampling
    if sampling.logit_bias:
        biased = places(np.fromiter(sampling.logit_bias, np.int64))
        row[biased] += np.fromiter(sampling.logit_bias.values(), np.float32)
    if not slot.is_penalised:
        return
    token_ids, num_times = slot.counts.of(slot.token_ids)
    at = places(token_ids)
    if sampling.repetition_penalty != 1.0:
        values = row[at]
        factor = np.where(values > 0, 1 / sampling.repetition_penalty, sampling.repetition_penalty)
        row[at] = values * factor
    if sampling.presence_penalty or sampling.frequency_penalty:
        penalties = sampling.presence_penalty + sampling.frequency_penalty * num_times
        row[at] -= np.where(num_times > 0, penalties, 0)


def _drawing(slots: list[Slot], token_ids: list[int | None]) -> list[int]:
    rows = zip(slots, token_ids, strict=True)
    return [i for i, (slot, best) in enumerate(rows) if best is not None and not slot.is_greedy]


def _draw_random(logits: torch.Tensor, slots: list[Slot], token_ids: list[int | None]) -> None:
    drawing = _drawing(slots, token_ids)
    if not drawing:
        return
    rows: Floats = torch.softmax(_tempered(logits, slots, drawing), dim=1).numpy()
    for i, row in zip(drawing, rows, strict=True):
        if slots[i].is_filtered:
            row *= row >= least_weight(row, slots[i])
    for i, row, sums in zip(drawing, rows, block_sums(rows), strict=True):
        token_ids[i] = draw(row, sums, _uniform(slots[i]))


def _tempered(scores: torch.Tensor, slots: list[Slot], drawing: list[int]) -> torch.Tensor:
    """The rows of those that draw, divided by their temperatures; may overwrite scores."""
    if len(drawing) < len(slots):
        scores = scores[drawing]
    temperatures = [slots[i].sampling.temperature for i in drawing]
    if any(temperature != 1.0 for temperature in temperatures):
        scores.div_(torch.tensor(temperatures).unsqueeze(1))
    return scores


def _uniform(slot: Slot) -> float:
    """A number in [0, 1) that depends on nothing but the seed and the position."""
    key = f"{slot.seed}/{slot.num_generated_tokens}"
    digest = blake2b(key.encode(), digest_size=6).digest()
    return int.from_bytes(digest) / (1 << 48)


class HostStep:
    """A computed step: logits, and tokens once it has its masks."""

    def __init__(
        self,
        logits: Logits,
        spans: dict[int, Span],
        scores: Mapping[int, PromptLogprobs] | None = None,
    ) -> None:
        """`spans` that are last, and `scores` of prompts, by their row in the batch."""
        self._logits: Logits | None = logits
        self._spans = spans
        self._scores = scores or {}
        self._sampled: list[Sampled] = []

    def mask(self, masks: Mapping[int, TokenMasks]) -> None:
        """Sample with these masks, by the row in the batch."""
        assert self._logits is not None
        self._sampled = _sample(self._logits, self._spans, masks)
        self._logits = None
        for span, sampled in zip(self._spans.values(), self._sampled, strict=True):
            span.slot.token_ids += sampled.token_ids

    def collect(self) -> list[Sampled]:
        """Wait for the results of each row with is_last or prompt_logprobs."""
        if not self._scores:
            return self._sampled
        sampled = dict(zip(self._spans, self._sampled, strict=True))
        return [
            sampled.get(row, Sampled(()))._replace(prompt_logprobs=self._scores.get(row))
            for row in sorted({*sampled, *self._scores})
        ]

    def steady_tokens(self) -> list[int]:
        """There are none: the capacity of backends on a host says so."""
        return []


def _sample(
    logits: Logits, spans: dict[int, Span], masks: Mapping[int, TokenMasks]
) -> list[Sampled]:
    if not any(span.drafts for span in spans.values()):
        first_masks = {i: masks[row][0] for i, row in enumerate(spans) if row in masks}
        return sample(logits, [span.slot for span in spans.values()], first_masks)
    sampled, first = [], 0
    for row, span in spans.items():
        end = first + span.num_sampled
        rows = Logits(logits.values[first:end], logits.columns)
        if span.drafts:
            sampled.append(verify(rows, span.slot, span.drafts, masks.get(row)))
        else:
            sampled += sample(rows, [span.slot], {0: masks[row][0]} if row in masks else {})
        first = end
    return sampled
