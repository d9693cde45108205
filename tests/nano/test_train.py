"""What training reads: the same batches from any number of workers, and what is learnt of them."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from torch.utils.data import DataLoader

from nano.model import Nano, Shape
from nano.samples import steps
from nano.tokens import CALL, RETURN
from nano.train import Batch, Steps, batch_loss, collate
from nano.vocabulary import met_ids

SEED, NUM_TOKENS, NUM_STEPS = 5, 4800, 4
VOCABULARY = sorted({*met_ids(), CALL, RETURN})
ROW_OF = {token_id: row for row, token_id in enumerate(VOCABULARY, 1)}


def _batches(num_workers: int) -> list[list[Batch]]:
    data = Steps(SEED, 0, NUM_TOKENS, VOCABULARY)
    return list(islice(DataLoader(data, batch_size=None, num_workers=num_workers), NUM_STEPS))


def _wanted(first: int, stride: int) -> list[list[Batch]]:
    found = islice(steps(SEED, first, stride, NUM_TOKENS), NUM_STEPS)
    return [[collate(samples, ROW_OF) for samples in step] for step in found]


def _assert_same(found: list[Batch], wanted: list[Batch]) -> None:
    for batch, other in zip(found, wanted, strict=True):
        assert torch.equal(batch.rows, other.rows)
        assert torch.equal(batch.is_prompt, other.is_prompt)
        assert torch.equal(batch.at, other.at)
        assert torch.equal(batch.targets, other.targets)


def test_no_worker_reads_one_pool_after_the_other() -> None:
    for found, wanted in zip(_batches(0), _wanted(0, 1), strict=True):
        _assert_same(found, wanted)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # the loader's own workers
def test_two_workers_share_the_pools() -> None:
    even, odd = _wanted(0, 2), _wanted(1, 2)
    wanted = [even[0], odd[0], even[1], odd[1]]
    for found, step in zip(_batches(2), wanted, strict=True):
        _assert_same(found, step)


def test_what_is_predicted_is_the_replies_and_follows_its_place() -> None:
    samples = next(steps(SEED, 0, 1, NUM_TOKENS))[0]
    batch = collate(samples, ROW_OF)
    assert torch.equal(batch.rows.flatten()[batch.at + 1], batch.targets)
    assert (batch.targets > 0).all()
    assert not batch.is_prompt.flatten()[batch.at + 1].any()
    num_learnt = sum(
        is_learnt and token_id in ROW_OF
        for sample in samples
        for token_id, is_learnt in zip(sample.ids, sample.learn, strict=True)
    )
    assert len(batch.targets) == num_learnt


def test_a_batchs_loss_reaches_every_layer() -> None:
    shape = Shape(
        hidden_size=16,
        head_dim=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    model = Nano(shape, len(VOCABULARY) + 1)
    batch = collate(next(steps(SEED, 0, 1, NUM_TOKENS))[0][:4], ROW_OF)
    loss = batch_loss(model, batch)
    loss.backward()
    assert torch.isfinite(loss)
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())
