"""Dialogues as training samples: ids, and which of them the model must predict."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from nano import replies
from nano.about import think
from nano.dialogues import Mix, Turn, Writer
from nano.tokens import CALL, END, MESSAGE, decode, encode
from nano.vocabulary import met_ids
from service.harmony.render import render
from service.harmony.types import ReasoningEffort

MAX_TOKENS = 1000
_POOL = 96  # dialogues drawn together and sorted by length, so that little is padding
_BATCHES = 3  # in a step
_KEEP = 0.3  # of the reasoning's ever-equal words, which are soon learnt
_VOCABULARY_DIALOGUES = 6_000
_PHRASE_DIALOGUES = 500  # of each kind
_LEAST_MEETINGS = 3  # for an id outside nano/vocabulary.py


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
        learn += _worth_learning(turn.reply, rng)
    return Sample(tuple(ids), tuple(learn))


def _last(ids: list[int], token_id: int) -> int:
    return len(ids) - 1 - ids[::-1].index(token_id)


def _worth_learning(reply: tuple[int, ...], rng: random.Random) -> list[bool]:
    start, end = reply.index(MESSAGE) + 1, reply.index(END)
    dull = _dull_ids()
    return [
        not start <= at < end or token_id not in dull or rng.random() < _KEEP
        for at, token_id in enumerate(reply)
    ]


@cache
def _dull_ids() -> frozenset[int]:
    efforts: tuple[ReasoningEffort, ...] = ("low", "medium", "high")
    texts = [think("", "", effort) for effort in efforts]  # what the user does is never dull
    ids = {token_id for text in texts for token_id in encode(text)}
    for effort in efforts:
        ids.update(replies.call_analysis("", (), effort), replies.result_analysis(effort))
    return frozenset(ids)


def steps(seed: int, first: int, num_tokens: int, mix: Mix) -> Iterator[list[list[Sample]]]:
    """Yield the batches of each step, `num_tokens` tokens with padding, from pool `first` on.

    A batch holds dialogues of like length; a step has a short, a middle and a long batch,
    since length goes with kind and a step should see every kind.
    """
    pool = first
    while True:
        rng = random.Random(f"{seed}:{pool}")
        writer = Writer(rng.randrange(2**48), "train", mix)
        samples = [make_sample(writer.dialogue(), rng) for _ in range(_POOL)]
        samples = [sample for sample in samples if len(sample.ids) <= MAX_TOKENS]
        groups = _grouped(sorted(samples, key=lambda s: len(s.ids)), num_tokens // _BATCHES)
        thirds = [
            groups[part :: len(groups) // _BATCHES] for part in range(len(groups) // _BATCHES)
        ]
        rng.shuffle(thirds)
        yield from thirds
        pool += 1


def _grouped(samples: list[Sample], num_tokens: int) -> list[list[Sample]]:
    groups: list[list[Sample]] = [[]]
    for sample in samples:  # ascending, so the newest is the longest of its group
        if groups[-1] and (len(groups[-1]) + 1) * len(sample.ids) > num_tokens:
            groups.append([])
        groups[-1].append(sample)
    return groups


def phrase_ids(seed: int) -> set[int]:
    """Return the ids of set phrases and of JSON's marks: all but what is copied."""
    writer = Writer(seed, "train")
    ids = {*_dull_ids(), *replies.call([], "", []), *encode("{}")}
    for kind in ("chat", "unknown", "no_tool"):
        for _ in range(_PHRASE_DIALOGUES):
            ids.update(*(turn.reply for turn in writer.dialogue(kind)))
    for kind in ("copy", "ask_back", "tools"):
        count: Counter[int] = Counter()
        for _ in range(_PHRASE_DIALOGUES):
            for turn in writer.dialogue(kind):
                count.update(set(turn.reply))
        ids.update(i for i, times in count.items() if _is_phrase(kind, i, times))
    return ids


def _is_phrase(kind: str, token_id: int, times: int) -> bool:
    if kind == "tools":
        return bool(re.fullmatch(r"[\s{}\[\]\":,.()]+", decode([token_id])))
    return times > 0.1 * _PHRASE_DIALOGUES


def training_vocabulary(seed: int) -> list[int]:
    """Return the sorted ids that get a row of their own."""
    writer = Writer(seed, "train")
    met: Counter[int] = Counter()
    for _ in range(_VOCABULARY_DIALOGUES):
        for turn in writer.dialogue():
            met.update({*turn.reply, *render(turn.prompt)})
    return sorted(met_ids() | {i for i, count in met.items() if count >= _LEAST_MEETINGS})
