"""Train nano: `python -m nano.train`, on a GPU if there is one.

The same seed, steps and device give the same dialogues in the same order. The learning
rate warms up, stays, and falls linearly over the last steps. A run that finds a state in
its folder goes on from it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nano.dialogues import BROAD, NATURAL
from nano.model import Nano, Shape
from nano.samples import Sample, phrase_ids, steps, training_vocabulary
from nano.start import hold, initialise

SEED = 2
_WARMUP_STEPS = 100
_BODY_RATE = 8e-4
_ROW_RATE = 5e-4
_RARE_SHARE = 0.01  # of prompt tokens shown as an unmet id
_SAVE_EVERY = 100


@dataclass(frozen=True, slots=True)
class Run:
    """What one training run is made of."""

    out: Path
    steps: int
    fall: int  # the last steps, over which the rate falls to 0
    tokens: int  # in a step, padding counted
    natural: int  # the last steps, on dialogues as people write them
    seed: int = SEED
    threads: int = 2

    @property
    def state_path(self) -> Path:
        """Where the newest state is kept."""
        return self.out / "state.pt"

    def rate(self, step: int) -> float:
        """Return the share of the full learning rate at a step."""
        return min((step + 1) / _WARMUP_STEPS, 1.0, (self.steps - step) / self.fall)


def collate(samples: list[Sample], row_of: dict[int, int], device: str) -> tuple[Tensor, Tensor]:
    """Return rows [batch, tokens] and a mask of the positions to be predicted."""
    longest = max(len(sample.ids) for sample in samples)
    longest = -(-longest // 8) * 8
    rows = torch.zeros(len(samples), longest, dtype=torch.long)
    learn = torch.zeros(len(samples), longest, dtype=torch.bool)
    for index, sample in enumerate(samples):
        rows[index, : len(sample.ids)] = torch.tensor([row_of.get(i, 0) for i in sample.ids])
        learn[index, : len(sample.ids)] = torch.tensor(sample.learn)
    learn &= rows > 0
    return rows.to(device), learn.to(device)


def batch_loss(model: Nano, rows: Tensor, learn: Tensor) -> Tensor:
    """Return the mean loss over the positions to be predicted."""
    rare = (torch.rand(rows.shape) < _RARE_SHARE).to(rows.device) & ~learn
    hidden = model(rows.masked_fill(rare, 0))
    return model.loss(hidden[:, :-1][learn[:, 1:]], rows[:, 1:][learn[:, 1:]])


def optimiser(model: Nano) -> torch.optim.AdamW:
    """Return AdamW without decay, which the held weights would suffer from."""
    body = [parameter for name, parameter in model.named_parameters() if name != "rows"]
    groups: list[dict[str, Any]] = [
        {"params": body, "rate": _BODY_RATE},
        {"params": [model.rows], "rate": _ROW_RATE},
    ]
    return torch.optim.AdamW(groups, lr=_BODY_RATE, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0)


class Trainer:
    """A model in training, with all that a later run needs to go on."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        state = torch.load(run.state_path) if run.state_path.exists() else {}
        self.vocabulary: list[int] = state.get("vocabulary") or training_vocabulary(run.seed)
        self.model = Nano(Shape(), len(self.vocabulary) + 1)
        initialise(self.model, self.vocabulary, run.seed)
        self.model.to(self.device)
        phrases = phrase_ids(run.seed)
        hold(self.model, [row + 1 for row, i in enumerate(self.vocabulary) if i in phrases])
        self.optimiser = optimiser(self.model)
        if state:
            self.model.load_state_dict(state["model"])
            self.optimiser.load_state_dict(state["optimiser"])
        self.step: int = state.get("step", 0)
        self.tokens: int = state.get("tokens", 0)
        self.seconds: float = state.get("seconds", 0.0)
        self.losses: list[float] = []

    def steps(self) -> Iterator[list[tuple[Tensor, Tensor]]]:
        """Yield each step's batches; a run that goes on from a state draws its own."""
        row_of = {token_id: row + 1 for row, token_id in enumerate(self.vocabulary)}
        broad, natural = (
            steps(self.run.seed, self.step * 1000, self.run.tokens, mix) for mix in (BROAD, NATURAL)
        )
        while True:
            is_natural = self.step >= self.run.steps - self.run.natural
            step = next(natural if is_natural else broad)
            yield [collate(samples, row_of, self.device) for samples in step]

    def learn(self, batches: list[tuple[Tensor, Tensor]]) -> None:
        """Take one step."""
        num_learnt = sum(int(learn.sum()) for _, learn in batches)
        total = 0.0
        for rows, learn in batches:
            with torch.autocast(self.device, torch.bfloat16):
                loss = batch_loss(self.model, rows, learn) * (int(learn.sum()) / num_learnt)
            loss.backward()
            total += loss.item()
            self.tokens += rows.numel()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for group in self.optimiser.param_groups:
            group["lr"] = group["rate"] * self.run.rate(self.step)
        self.optimiser.step()
        self.optimiser.zero_grad()
        self.step += 1
        self.losses.append(total)

    def mean_loss(self, num_steps: int) -> float:
        """Return the mean loss of the last steps."""
        return sum(self.losses[-num_steps:]) / len(self.losses[-num_steps:])

    def save(self) -> None:
        """Save the state; an interrupted write leaves the older one."""
        state = {
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "vocabulary": self.vocabulary,
            "shape": asdict(self.model.shape),
            "step": self.step,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "loss": self.mean_loss(_SAVE_EVERY),
            "seed": self.run.seed,
            "device": self.device,
        }
        written = self.run.state_path.with_suffix(".new")
        torch.save(state, written)
        written.replace(self.run.state_path)


def train(run: Run) -> None:
    """Train from the newest state in the run's folder, or from the start."""
    torch.set_num_threads(run.threads)
    run.out.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(run)
    torch.manual_seed(run.seed + trainer.step)
    clock = time.monotonic()
    for batches in trainer.steps():
        if trainer.step >= run.steps:
            break
        trainer.learn(batches)
        trainer.seconds, clock = trainer.seconds + time.monotonic() - clock, time.monotonic()
        if trainer.step % 25 == 0:
            print(
                f"step {trainer.step}/{run.steps}, loss {trainer.mean_loss(25):.4f},"
                f" {trainer.tokens} tokens, {trainer.seconds:.0f} s",
                flush=True,
            )
        if trainer.step % _SAVE_EVERY == 0 or trainer.step == run.steps:
            trainer.save()


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/nano"))
    parser.add_argument("--steps", type=int, default=5200)
    parser.add_argument("--fall", type=int, default=1300)
    parser.add_argument("--natural", type=int, default=1300)
    parser.add_argument("--tokens", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--threads", type=int, default=2)
    train(Run(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
