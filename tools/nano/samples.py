"""Dialogues as training samples: ids, and which of them the model must predict."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from service.harmony.render import render
from tools.nano.about import intents
from tools.nano.dialogues import KINDS, Turn, Writer
from tools.nano.spelling import pieces
from tools.nano.tokens import CALL, decode, encode

MAX_TOKENS = 1000
_DIALOGUES_PER_TOKEN = 1 / 31  # drawn together and sorted by length, so that little is padding
BATCHES = 2  # in a step
_WIDTHS = (
    *range(64, 256, 16), *range(256, 384, 32), *range(384, 512, 64), *range(512, MAX_TOKENS, 128),
    MAX_TOKENS,
)  # fmt: skip
_PHRASE_DIALOGUES = 600  # of each kind


@dataclass(frozen=True, slots=True)
class Sample:
    """One sequence; `learn[i]` says whether token i is to be predicted from those before it."""

    ids: tuple[int, ...]
    learn: tuple[bool, ...]


def make_sample(turns: list[Turn], rng: random.Random) -> Sample:
    """Join a dialogue's turns as they follow on each other, or take one of them."""
    if len(turns) == 2 and rng.random() < 0.25:
        turns = [turns[1]]
    ids = render(turns[0].prompt)
    learn = [False] * len(ids)
    for index, turn in enumerate(turns):
        if index:
            prompt = render(turn.prompt)
            tail = prompt[_last(prompt, CALL) + 1 :]
            ids += tail
            learn += [False] * len(tail)
        ids += turn.reply
        learn += [True] * len(turn.reply)
    return Sample(tuple(ids), tuple(learn))


def _last(ids: list[int], token_id: int) -> int:
    return len(ids) - 1 - ids[::-1].index(token_id)


def steps(
    seed: int, first: int, stride: int, num_tokens: int, is_late: bool = False
) -> Iterator[list[list[Sample]]]:
    """Yield the batches of each step, `num_tokens` tokens with padding, from pool `first` on.

    A pool is drawn and sorted as one; the next is `stride` pools on. A batch holds dialogues of
    like length. A step has a short and a long one, since length goes with kind and a step should
    see every kind; where a pool's batches are odd in number, one step has three.
    """
    for pool in itertools.count(first, stride):
        rng = random.Random(f"{seed}:{pool}")
        writer = Writer(rng.randrange(2**48), "train", is_late)
        size = int(num_tokens * _DIALOGUES_PER_TOKEN)
        samples = [make_sample(writer.dialogue(), rng) for _ in range(size)]
        samples = [sample for sample in samples if len(sample.ids) <= MAX_TOKENS]
        batches = _grouped(sorted(samples, key=lambda s: len(s.ids)), num_tokens // BATCHES)
        num_steps = len(batches) // BATCHES
        drawn = [batches[part::num_steps] for part in range(num_steps)]
        rng.shuffle(drawn)
        yield from drawn


def _grouped(samples: list[Sample], num_tokens: int) -> list[list[Sample]]:
    groups: list[list[Sample]] = [[]]
    for sample in samples:  # ascending, so the newest is the longest of its group
        if groups[-1] and (len(groups[-1]) + 1) * width_for(len(sample.ids)) > num_tokens:
            groups.append([])
        groups[-1].append(sample)
    return groups


def width_for(num_ids: int) -> int:
    """Return how wide a batch is whose longest dialogue has so many ids: of a few widths, each
    of which the trainer captures once."""
    return next((width for width in _WIDTHS if width >= num_ids), num_ids)


def phrase_ids(seed: int) -> set[int]:
    """Return the ids of set phrases and of JSON's marks: all but what is only copied."""
    writer = Writer(seed, "train")
    ids: set[int] = set()
    for intent in intents():
        ids.update(encode(intent.answer))
    for kind in KINDS:
        count: Counter[int] = Counter()
        for _ in range(_PHRASE_DIALOGUES):
            for turn in writer.dialogue(kind):
                count.update(set(turn.reply))
        ids.update(i for i, times in count.items() if _is_phrase(kind, i, times))
    return ids


def _is_phrase(kind: str, token_id: int, times: int) -> bool:
    if kind in ("chat", "unknown", "no_tool") or times > 0.1 * _PHRASE_DIALOGUES:
        return True
    if token_id not in pieces():
        return True
    return bool(re.fullmatch(r"[\s{}\[\]\":,.()]+", decode([token_id])))
