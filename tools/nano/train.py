"""Train nano: `python -m tools.nano.train`, on a GPU if there is one.

The same seed and plan give the same dialogues in the same order. In the main part the learning
rate warms up, stays, and falls to 0 in the last third. In the late part, which has fresh moments
and dialogues of its own, it rises to half of that and falls again. A run that finds a state in its
folder goes on from it, with other dialogues.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from tools.nano.layers import Shape
from tools.nano.model import Nano, initialise
from tools.nano.rows import make_makeup, swapped
from tools.nano.samples import Sample, phrase_ids, steps

SEED = 3
_WARMUP_STEPS = 300
# Shares of the main part's steps, the last ones.
_FALLING_SHARE = 1 / 3  # the learning rate falls
_SETTLING_SHARE = 2 / 5  # words and pieces have the vectors that ship
_LATE_RATE_SHARE = 1 / 2
_SAVE_EVERY = 200
_PRINT_EVERY = 50


@dataclass(frozen=True, slots=True)
class Plan:
    """How much a device can do in its time."""

    steps: int  # of the main part
    late_steps: int
    tokens: int  # in a step, padding counted
    rate: float
    workers: int  # processes that write dialogues


# cuda: about 0.09 s a step on one H200 with 16 cores, 29 minutes in all.
# cpu: an hour on 2 cores at the 2,700 tokens/s that were measured; it sees 1 / 118 of the tokens.
PLANS = {
    "cuda": Plan(steps=15_000, late_steps=3_500, tokens=65_536, rate=2e-3, workers=14),
    "cpu": Plan(steps=2_800, late_steps=700, tokens=3_000, rate=8e-4, workers=0),
}


@dataclass(frozen=True, slots=True)
class Batch:
    """Dialogues of like length, and which of their tokens are to be predicted from where.

    Arrays, which a worker sends as bytes: for each tensor the trainer would have to ask a worker
    that is busy.
    """

    ids: NDArray[np.int64]  # [dialogues, tokens]
    at: NDArray[np.int64]  # [predictions] flat positions before the predicted token
    wanted: NDArray[np.int64]  # [predictions] ids


def collate(samples: list[Sample]) -> Batch:
    """Join samples into one batch."""
    longest = max(len(sample.ids) for sample in samples)
    longest = -(-longest // 8) * 8
    ids = np.zeros((len(samples), longest), np.int64)
    learn = np.zeros(ids.shape, np.bool_)
    for index, sample in enumerate(samples):
        ids[index, : len(sample.ids)] = sample.ids
        learn[index, : len(sample.ids)] = sample.learn
    predicted = np.flatnonzero(learn)
    return Batch(ids, predicted - 1, ids.ravel()[predicted])


class Steps(IterableDataset[list[Batch]]):
    """Every step's batches; each worker writes those of its own pools of dialogues."""

    def __init__(self, seed: int, first: int, tokens: int, is_late: bool = False) -> None:
        self._seed, self._first, self._tokens, self._is_late = seed, first, tokens, is_late

    def __iter__(self) -> Iterator[list[Batch]]:
        worker = get_worker_info()
        place, count = (worker.id, worker.num_workers) if worker else (0, 1)
        for step in steps(self._seed, self._first + place, count, self._tokens, self._is_late):
            yield [collate(samples) for samples in step]


def batch_loss(model: Nano, batch: Batch, device: str = "cpu") -> Tensor:
    """Return the summed loss over the tokens to be predicted."""
    parts = (batch.ids, batch.at, batch.wanted)
    ids, at, wanted = (torch.from_numpy(part).to(device, non_blocking=True) for part in parts)
    hidden = model(ids)
    return model.loss(hidden.flatten(0, 1)[at], model.target_of[wanted])


class Trainer:
    """A model in training, with all that a later run needs to go on."""

    def __init__(
        self, plan: Plan, out: Path, seed: int, device: str, shape: Shape | None = None
    ) -> None:
        self.plan, self.seed, self.device = plan, seed, device
        self.state_path = out / "state.pt"
        state = torch.load(self.state_path, map_location=device) if self.state_path.exists() else {}
        if state.get("seed", seed) != seed:  # other vectors, other dialogues
            raise SystemExit(
                f"{self.state_path} was trained with seed {state['seed']}, not {seed}:"
                f" move it away, or go on with --seed {state['seed']}"
            )
        self.learnt: list[int] = state.get("learnt") or sorted(phrase_ids(seed))
        makeup = make_makeup(seed, self.learnt)
        self.model = Nano(shape or Shape(), makeup)
        initialise(self.model, seed)
        self.model.to(device)
        if device == "cuda":
            for layer in self.model.stack():
                layer.compile(dynamic=True)  # 1.6 times as fast
        self.swapped = [torch.from_numpy(part).to(device) for part in swapped(makeup)]
        self.forget_moments()
        if state:
            self.model.load_state_dict(state["model"])
        if "optimiser" in state:
            self.optimiser.load_state_dict(state["optimiser"])
        self.step: int = state.get("step", 0)
        self.tokens: int = state.get("tokens", 0)
        self.seconds: float = state.get("seconds", 0.0)
        self.loss = torch.zeros((), device=device)  # summed over the steps since the last look
        self.num_unseen_steps = 0

    def forget_moments(self) -> None:
        """Begin with a fresh optimiser."""
        self.optimiser = torch.optim.AdamW(
            self.model.parameters(),
            betas=(0.9, 0.98),
            eps=1e-9,
            weight_decay=0.0,
            fused=self.device == "cuda",
        )

    @property
    def is_late(self) -> bool:
        """Whether the main part is over."""
        return self.step >= self.plan.steps

    def steps(self) -> DataLoader[list[Batch]]:
        """Return this part's batches; a run that goes on from a state draws from other pools."""
        data = Steps(self.seed, self.step * 1000, self.plan.tokens, self.is_late)
        return DataLoader(data, batch_size=None, num_workers=self.plan.workers)

    def rate(self) -> float:
        """Return the learning rate of this step."""
        first, length = (
            (self.plan.steps, self.plan.late_steps) if self.is_late else (0, self.plan.steps)
        )
        warm = (self.step - first + 1) / _WARMUP_STEPS
        left = (first + length - self.step) / length
        if self.is_late:
            return self.plan.rate * _LATE_RATE_SHARE * min(warm, left)
        return self.plan.rate * min(warm, left / _FALLING_SHARE, 1.0)

    def draw_vectors(self) -> None:
        """Give words and pieces their vectors for this step."""
        if self.step < self.plan.steps * (1 - _SETTLING_SHARE):
            self.model.swap_vectors(*self.swapped)
        else:
            self.model.settle()

    def learn(self, batches: list[Batch]) -> None:
        """Take one step."""
        num_predicted = sum(len(batch.wanted) for batch in batches)
        self.draw_vectors()
        for batch in batches:
            with torch.autocast(self.device, torch.bfloat16):
                loss = batch_loss(self.model, batch, self.device) / num_predicted
            loss.backward()
            self.loss += loss.detach()
            self.tokens += batch.ids.size
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate()
        self.optimiser.step()
        self.optimiser.zero_grad()
        self.step += 1
        self.num_unseen_steps += 1

    def mean_loss(self) -> float:
        """Return the mean loss of the steps since the last call."""
        mean = self.loss.item() / self.num_unseen_steps
        self.loss.zero_()
        self.num_unseen_steps = 0
        return mean

    def save(self, loss: float) -> None:
        """Save the state; an interrupted write leaves the older one."""
        written = self.state_path.with_suffix(".new")
        torch.save(self.state(loss), written)
        written.replace(self.state_path)

    def state(self, loss: float) -> dict[str, Any]:
        """Return what is saved."""
        return {
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "learnt": self.learnt,
            "shape": asdict(self.model.shape),
            "step": self.step,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "loss": loss,
            "seed": self.seed,
            "device": self.device,
        }


def train(trainer: Trainer) -> None:
    """Train to the plan's end."""
    torch.manual_seed(trainer.seed + trainer.step)
    plan = trainer.plan
    if not trainer.is_late:
        train_until(trainer, plan.steps)
    if trainer.step == plan.steps:
        trainer.forget_moments()
    train_until(trainer, plan.steps + plan.late_steps)


def train_until(trainer: Trainer, end: int) -> None:
    """Train to step `end`, which is a part's last."""
    clock = time.monotonic()
    for batches in trainer.steps():
        if trainer.step >= end:
            break
        trainer.learn(batches)
        is_last = trainer.step == end
        if trainer.step % _PRINT_EVERY and not is_last:
            continue
        loss = trainer.mean_loss()
        trainer.seconds, clock = trainer.seconds + time.monotonic() - clock, time.monotonic()
        print(
            f"step {trainer.step}/{trainer.plan.steps + trainer.plan.late_steps}, loss {loss:.4f},"
            f" {trainer.tokens} tokens, {trainer.seconds:.0f} s",
            flush=True,
        )
        if trainer.step % _SAVE_EVERY == 0 or is_last:
            trainer.save(loss)


def main() -> None:
    """Read the command line and train."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    plan = PLANS[device]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/nano"))
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--steps", type=int, default=plan.steps)
    parser.add_argument("--late-steps", type=int, default=plan.late_steps)
    parser.add_argument("--tokens", type=int, default=plan.tokens)
    parser.add_argument("--rate", type=float, default=plan.rate)
    parser.add_argument("--workers", type=int, default=plan.workers)
    arguments = parser.parse_args()
    plan = Plan(
        arguments.steps,
        arguments.late_steps,
        arguments.tokens,
        arguments.rate,
        arguments.workers,
    )
    arguments.out.mkdir(parents=True, exist_ok=True)
    train(Trainer(plan, arguments.out, arguments.seed, device))


if __name__ == "__main__":
    main()
