"""Train nano: `python -m tools.nano.train`, on a GPU if there is one.

The same seed and plan give the same dialogues in the same order. In the main part the learning
rate warms up, stays, and falls to 0 in the last third. In the late part, which has fresh moments
and dialogues of its own, it rises to half of that and falls again. With `--seconds` the parts share
the time, whatever the speed. A run that finds a state in its folder goes on from it, with other
dialogues.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from tools.nano.batches import Batch, Steps
from tools.nano.captured import Captured
from tools.nano.layers import Shape
from tools.nano.model import Nano, initialise
from tools.nano.rows import make_makeup, swapped
from tools.nano.samples import phrase_ids

SEED = 3
STOPPED = 75  # exit status of a part that SIGTERM ended; the same command goes on
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
    is_captured: bool = True  # on a GPU the steps run as CUDA graphs
    seconds: float = 0.0  # that all steps take, as many as there are; 0: as many steps as above


# cuda: about 0.09 s a step on one H200 with 16 cores, 29 minutes in all.
# cpu: an hour on 2 cores at the 2,700 tokens/s that were measured; it sees 1 / 118 of the tokens.
PLANS = {
    "cuda": Plan(steps=15_000, late_steps=3_500, tokens=65_536, rate=2e-3, workers=14),
    "cpu": Plan(steps=2_800, late_steps=700, tokens=3_000, rate=8e-4, workers=0),
}


def batch_loss(model: Nano, batch: Batch, device: str = "cpu") -> Tensor:
    """Return the summed loss over the tokens to be predicted."""
    parts = (batch.met, batch.index, batch.at, batch.wanted)
    met, index, at, wanted = (torch.from_numpy(part).to(device) for part in parts)
    hidden = model.hidden_of(met, index)
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
        self.captured = Captured(self.model) if device == "cuda" and plan.is_captured else None
        self.waited, self.is_stopped = 0.0, False
        self.forget_moments()
        if state:
            self.model.load_state_dict(state["model"])
        if "optimiser" in state:
            self.optimiser.load_state_dict(state["optimiser"])
        self.step: int = state.get("step", 0)
        self.tokens: int = state.get("tokens", 0)
        self.seconds: float = state.get("seconds", 0.0)
        self.late_from: int | None = state.get("late_from")  # the late part's first step
        self._began: float = time.monotonic() - self.seconds
        self.loss = torch.zeros((), device=device)  # summed over the steps since the last look
        self.num_unseen_steps = 0
        self._paced = (time.monotonic(), self.step)

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
    def place(self) -> float:
        """How much of the plan is done, in its steps."""
        if not self.plan.seconds:
            return self.step
        share: float = (time.monotonic() - self._began) / self.plan.seconds
        return share * (self.plan.steps + self.plan.late_steps)

    @property
    def share(self) -> float:
        """What share of the plan is done."""
        done: float = self.place / (self.plan.steps + self.plan.late_steps)
        return done

    def begin(self) -> None:
        """Let the time run from here."""
        self._began = time.monotonic() - self.seconds

    @property
    def is_late(self) -> bool:
        """Whether the main part is over."""
        return self.late_from is not None

    def begin_late(self) -> None:
        """Begin the late part, with fresh moments."""
        self.late_from = self.step
        self.forget_moments()

    def steps(self) -> DataLoader[list[Batch]]:
        """Return this part's batches; a run that goes on from a state draws from other pools."""
        data = Steps(self.seed, self.step * 1000, self.plan.tokens, self.is_late)
        return DataLoader(data, batch_size=None, num_workers=self.plan.workers)

    def rate(self) -> float:
        """Return the learning rate of this step."""
        end, length = self.plan.steps, self.plan.steps
        if self.is_late:
            end, length = end + self.plan.late_steps, self.plan.late_steps
        warm = (self.step - (self.late_from or 0) + 1) / _WARMUP_STEPS
        left = max(0.0, (end - self.place) / length)
        if self.is_late:
            return self.plan.rate * _LATE_RATE_SHARE * min(warm, left)
        return self.plan.rate * min(warm, left / _FALLING_SHARE, 1.0)

    def draw_vectors(self) -> None:
        """Give words and pieces their vectors for this step."""
        if self.place < self.plan.steps * (1 - _SETTLING_SHARE):
            self.model.swap_vectors(*self.swapped)
        else:
            self.model.settle()

    def learn(self, batches: list[Batch]) -> None:
        """Take one step."""
        num_predicted = sum(len(batch.wanted) for batch in batches)
        self.draw_vectors()
        for batch in batches:
            self.loss += self.add_gradients(batch, num_predicted)
            self.tokens += batch.ids.size
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate()
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=self.captured is None)
        self.step += 1
        self.num_unseen_steps += 1

    def add_gradients(self, batch: Batch, num_predicted: int) -> Tensor:
        """Add the gradients of a batch; return its loss over `num_predicted`."""
        if self.captured is not None:
            try:
                return self.captured.add(batch, num_predicted)
            except RuntimeError as error:
                print(f"no CUDA graphs, kernels run one by one: {error}", flush=True)
                self.captured = None
        with torch.autocast(self.device, torch.bfloat16):
            loss = batch_loss(self.model, batch, self.device) / num_predicted
        loss.backward()
        return loss.detach()

    def batches(self) -> Iterator[list[Batch]]:
        """Yield this part's steps until somebody asks for an end; counts the waiting for data."""
        written = iter(self.steps())
        while not self.is_stopped:
            began = time.monotonic()
            batches = next(written)
            self.waited += time.monotonic() - began
            yield batches

    def stop(self, *_: object) -> None:
        """End after this step: what a signal calls."""
        self.is_stopped = True

    def mean_loss(self) -> float:
        """Return the mean loss of the steps since the last call."""
        mean = self.loss.item() / self.num_unseen_steps
        self.loss.zero_()
        self.num_unseen_steps = 0
        return mean

    def pace(self) -> str:
        """Say how fast the steps since the last call were, and how much of it was waiting."""
        now, step = time.monotonic(), self.step
        took, waited = now - self._paced[0], self.waited
        pace = (
            f"{(step - self._paced[1]) / max(took, 1e-9):.2f} steps/s, {waited / took:.0%} waiting"
        )
        self._paced, self.waited = (now, step), 0.0
        if self.captured is not None:
            pace += f", {len(self.captured)} graphs in {self.captured.seconds:.0f} s"
        return pace

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
            "late_from": self.late_from,
            "device": self.device,
        }


def train(trainer: Trainer) -> None:
    """Train to the plan's end."""
    torch.manual_seed(trainer.seed + trainer.step)
    plan = trainer.plan
    trainer.begin()
    if not trainer.is_late:
        train_until(trainer, plan.steps)
    if trainer.is_stopped:
        return
    if not trainer.is_late:
        trainer.begin_late()
    train_until(trainer, plan.steps + plan.late_steps)


def train_until(trainer: Trainer, end: int) -> None:
    """Train to the plan's step `end`, which is a part's last."""
    clock, loss, saved = time.monotonic(), 0.0, trainer.step

    def tell() -> float:
        nonlocal clock
        loss = trainer.mean_loss()
        trainer.seconds, clock = trainer.seconds + time.monotonic() - clock, time.monotonic()
        print(
            f"step {trainer.step}, {trainer.share:.1%} of the plan, loss {loss:.4f},"
            f" {trainer.tokens} tokens, {trainer.seconds:.0f} s, {trainer.pace()}",
            flush=True,
        )
        return loss

    for batches in trainer.batches():
        if trainer.place >= end:
            break
        trainer.learn(batches)
        if trainer.step % _PRINT_EVERY == 0:
            loss = tell()
            if trainer.step % _SAVE_EVERY == 0:
                trainer.save(loss)
                saved = trainer.step
    if trainer.step != saved:
        trainer.save(tell() if trainer.num_unseen_steps else loss)


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
    parser.add_argument("--seconds", type=float, default=0.0, help="in place of so many steps")
    parser.add_argument("--no-graphs", action="store_true", help="run kernels one by one")
    arguments = parser.parse_args()
    plan = Plan(
        arguments.steps, arguments.late_steps, arguments.tokens, arguments.rate, arguments.workers,
        is_captured=not arguments.no_graphs, seconds=arguments.seconds,
    )  # fmt: skip
    arguments.out.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(plan, arguments.out, arguments.seed, device)
    signal.signal(signal.SIGTERM, trainer.stop)
    train(trainer)
    if trainer.is_stopped:
        sys.exit(STOPPED)


if __name__ == "__main__":
    main()
