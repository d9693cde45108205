"""Batches of dialogues as arrays, and the processes that write them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info

from tools.nano.samples import BATCHES, Sample, steps, width_for


@dataclass(frozen=True, slots=True)
class Batch:
    """Dialogues of like length, and which of their tokens are to be predicted from where.

    Arrays, which a worker sends as bytes: for each tensor the trainer would have to ask a worker
    that is busy.
    """

    ids: NDArray[np.int64]  # [dialogues, tokens]
    met: NDArray[np.int64]  # the ids that occur, each once
    index: NDArray[np.int64]  # [dialogues, tokens] places in them
    at: NDArray[np.int64]  # [predictions] flat positions before the predicted token
    wanted: NDArray[np.int64]  # [predictions] ids


def collate(samples: list[Sample], num_tokens: int = 0) -> Batch:
    """Join samples into one batch, with empty rows up to `num_tokens` tokens."""
    width = width_for(max(len(sample.ids) for sample in samples))
    ids = np.zeros((max(len(samples), num_tokens // width), width), np.int64)
    learn = np.zeros(ids.shape, np.bool_)
    for index, sample in enumerate(samples):
        ids[index, : len(sample.ids)] = sample.ids
        learn[index, : len(sample.ids)] = sample.learn
    predicted = np.flatnonzero(learn)
    met, places = np.unique(ids, return_inverse=True)
    return Batch(ids, met, places.reshape(ids.shape), predicted - 1, ids.ravel()[predicted])


class Steps(IterableDataset[list[Batch]]):
    """Every step's batches; each worker writes those of its own pools of dialogues."""

    def __init__(self, seed: int, first: int, tokens: int, is_late: bool = False) -> None:
        self._seed, self._first, self._tokens, self._is_late = seed, first, tokens, is_late

    def __iter__(self) -> Iterator[list[Batch]]:
        worker = get_worker_info()
        place, count = (worker.id, worker.num_workers) if worker else (0, 1)
        for step in steps(self._seed, self._first + place, count, self._tokens, self._is_late):
            yield [collate(samples, self._tokens // BATCHES) for samples in step]
