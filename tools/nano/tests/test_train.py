"""What training reads: the same batches from any number of workers, and what is learnt of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tools.nano.batches import Batch, Steps, collate
from tools.nano.layers import Shape
from tools.nano.model import Nano, initialise
from tools.nano.rows import make_makeup
from tools.nano.samples import BATCHES, phrase_ids, steps
from tools.nano.train import Plan, Trainer, batch_loss, train

pytestmark = pytest.mark.slow  # of use to those who train nano anew; what ships is tested apart

SEED, NUM_TOKENS, NUM_STEPS = 5, 4800, 4
SMALL = Shape(
    hidden_size=16,
    head_dim=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
)


def _batches(num_workers: int) -> list[list[Batch]]:
    data = Steps(SEED, 0, NUM_TOKENS)
    return list(islice(DataLoader(data, batch_size=None, num_workers=num_workers), NUM_STEPS))


def _wanted(first: int, stride: int) -> list[list[Batch]]:
    found = islice(steps(SEED, first, stride, NUM_TOKENS), NUM_STEPS)
    return [[collate(samples, NUM_TOKENS // BATCHES) for samples in step] for step in found]


def _assert_same(found: list[Batch], wanted: list[Batch]) -> None:
    for batch, other in zip(found, wanted, strict=True):
        assert np.array_equal(batch.ids, other.ids)
        assert np.array_equal(batch.at, other.at)
        assert np.array_equal(batch.wanted, other.wanted)


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
    batch = collate(samples)
    assert np.array_equal(batch.ids.flatten()[batch.at + 1], batch.wanted)
    assert len(batch.wanted) == sum(sum(sample.learn) for sample in samples)


def test_a_batchs_loss_reaches_every_layer() -> None:
    model = Nano(SMALL, make_makeup(SEED, phrase_ids(SEED)))
    initialise(model, SEED)
    batch = collate(next(steps(SEED, 0, 1, NUM_TOKENS))[0][:4])
    assert (model.target_of[batch.wanted] >= 0).all()
    loss = batch_loss(model, batch)
    loss.backward()
    assert torch.isfinite(loss)
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())


def test_the_rate_rises_stays_and_falls_twice_and_a_stopped_run_goes_on(tmp_path: Path) -> None:
    plan = Plan(steps=1200, late_steps=1000, tokens=2000, rate=1e-3, workers=0)
    trainer = Trainer(plan, tmp_path, SEED, "cpu", SMALL)
    rates = []
    for trainer.step in (0, 299, 600, 800, 1000, 1200, 1700, 2200):
        if trainer.step == plan.steps:
            trainer.begin_late()
        rates.append(trainer.rate())
    assert rates == pytest.approx([1e-3 / 300, 1e-3, 1e-3, 1e-3, 5e-4, 5e-4 / 300, 2.5e-4, 0])
    trainer.step = 7
    trainer.learn(next(iter(trainer.steps())))
    trainer.save(loss=1.0)
    again = Trainer(plan, tmp_path, SEED, "cpu", SMALL)
    assert again.step == 8
    for found, wanted in zip(again.model.parameters(), trainer.model.parameters(), strict=True):
        assert torch.equal(found, wanted)


def test_the_late_part_follows_with_its_own_dialogues_and_fresh_moments(tmp_path: Path) -> None:
    plan = Plan(steps=1, late_steps=2, tokens=NUM_TOKENS, rate=1e-3, workers=0)
    trainer = Trainer(plan, tmp_path, SEED, "cpu", SMALL)
    train(trainer)
    seen = [*islice(steps(SEED, 0, 1, NUM_TOKENS), 1)]
    seen += islice(steps(SEED, 1000, 1, NUM_TOKENS, is_late=True), 2)
    assert trainer.step == 3
    sizes = (collate(samples, NUM_TOKENS // BATCHES).ids.size for step in seen for samples in step)
    assert trainer.tokens == sum(sizes)
    assert _num_updates(trainer) == 2
    longer = Trainer(replace(plan, late_steps=3), tmp_path, SEED, "cpu", SMALL)
    train(longer)
    assert _num_updates(longer) == 3  # within the late part the moments stay


def test_a_plan_of_so_many_seconds_passes_through_all_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("tools.nano.train.time.monotonic", lambda: now)
    plan = Plan(steps=1200, late_steps=400, tokens=NUM_TOKENS, rate=1e-3, workers=0, seconds=80)
    trainer = Trainer(plan, tmp_path, SEED, "cpu", SMALL)
    learn = trainer.learn

    def slow_step(batches: list[Batch]) -> None:
        nonlocal now
        learn(batches)
        now += 5

    monkeypatch.setattr(trainer, "learn", slow_step)
    train(trainer)
    assert trainer.step == 16
    assert trainer.late_from == 12
    assert torch.load(trainer.state_path)["step"] == 16
    assert trainer.share == 1
    assert trainer.rate() == 0
    stopped = Trainer(replace(plan, seconds=160), tmp_path, SEED, "cpu", SMALL)
    stopped.begin()
    assert stopped.is_late
    assert stopped.share == pytest.approx(0.5)


def _num_updates(trainer: Trainer) -> int:
    return int(trainer.optimiser.state[trainer.model.forms]["step"])


def test_a_state_of_another_seed_is_refused(tmp_path: Path) -> None:
    plan = Plan(steps=1, late_steps=1, tokens=NUM_TOKENS, rate=1e-3, workers=0)
    Trainer(plan, tmp_path, SEED, "cpu", SMALL).save(loss=1.0)
    with pytest.raises(SystemExit, match=f"state.pt was trained with seed {SEED}, not 6: move it"):
        Trainer(plan, tmp_path, 6, "cpu", SMALL)
