"""Train packed weights further: `python -m tools.nano.further --seconds 1000`.

The part begins from the weights that ship, with fresh moments, and ends when its time is over. The
learning rate warms up, stays for half of the time and falls to 0. For two thirds of the time every
other step swaps the vectors of all words but those whose meaning counts: number words, and what
first requests and questions about the service are worded with.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from profiles.checkpoints.compact import bundled_nano
from tools.nano import first_minute
from tools.nano.dialogues import Writer
from tools.nano.first_words import MEANT
from tools.nano.rows import swapped
from tools.nano.train import PLANS, SEED, Batch, Plan, Steps, Trainer
from tools.nano.unpack import load_packed
from tools.nano.vocabulary import stem
from tools.nano.watch import Watch, look

_RATE_SHARE = 1 / 2  # of the main part's learning rate
_WARMUP_STEPS = 300
_SWAPPING_SHARE = 2 / 3  # of the time
_MEAN_SHARE = 0.002  # of a step in the running mean of the weights
_FIRST_POOL = 10**9  # dialogues that no earlier part has met
_SAVE_EVERY = 500
_PRINT_EVERY = 100
_LOOK_SECONDS = 60.0  # between two looks at what it answers
# A word counts when one in so many first requests holds it.
_COUNTED_REQUESTS = 4000
_LEAST_SHARE = 1 / 160


def start_state(source: Path, out: Path) -> None:
    """Write a training state that begins with packed weights."""
    model, manifest = load_packed(source)
    training = manifest["training"]
    state = {
        "model": model.state_dict(),
        "learnt": model.makeup.learnt.tolist(),
        "shape": asdict(model.shape),
        **{key: training[key] for key in ("step", "tokens", "seconds", "seed")},
    }
    out.mkdir(parents=True, exist_ok=True)
    torch.save(state, out / "state.pt")


def meant_words() -> frozenset[str]:
    """Return the stems of the words whose meaning counts."""
    texts = [Path(__file__).with_name(name).read_text() for name in _MEANT]
    meant = set(_stems(" ".join([*texts, *MEANT, first_minute.texts()])))
    writer, count = Writer(SEED, "train"), Counter[str]()
    for _ in range(_COUNTED_REQUESTS):
        prompt = writer.dialogue("first")[0].prompt
        told = [tool.description for tool in prompt.tools]
        said = [message.content for message in prompt.messages]
        count.update(set(_stems(" ".join([*said, *told, *(tool.name for tool in prompt.tools)]))))
    return frozenset(meant | {w for w, n in count.items() if n > _LEAST_SHARE * _COUNTED_REQUESTS})


_MEANT = ("about.txt", "unknown.txt", "phrases.txt")


def _stems(text: str) -> list[str]:
    bare = "".join(letter if letter.isalpha() else " " for letter in text)
    return [stem(word) for word in bare.split()]


class Further(Trainer):
    """A trainer whose part is as long as its time; `left` says what share of it is left."""

    def __init__(self, plan: Plan, out: Path, device: str, left: Callable[[], float]) -> None:
        super().__init__(plan, out, SEED, device)
        self._left, self._num_steps = left, 0
        others = swapped(self.model.makeup, meant_words())
        self.swapped = [torch.from_numpy(part).to(device) for part in others]
        self.mean = [parameter.detach().clone() for parameter in self.model.parameters()]

    def steps(self) -> DataLoader[list[Batch]]:
        """Return batches that no earlier part has met."""
        data = Steps(self.seed, _FIRST_POOL + self.step * 1000, self.plan.tokens, is_late=True)
        return DataLoader(data, batch_size=None, num_workers=self.plan.workers)

    def rate(self) -> float:
        """Return the learning rate of this step."""
        warm = (self._num_steps + 1) / _WARMUP_STEPS
        return self.plan.rate * _RATE_SHARE * min(warm, 2 * self._left(), 1.0)

    def draw_vectors(self) -> None:
        """Swap the vectors of words without a meaning in every other step, but not to the end."""
        if self._num_steps % 2 and self._left() > 1 - _SWAPPING_SHARE:
            self.model.swap_vectors(*self.swapped)
        else:
            self.model.settle()

    def learn(self, batches: list[Batch]) -> None:
        """Take one step, and keep the running mean of the weights."""
        super().learn(batches)
        self._num_steps += 1
        with torch.no_grad():
            torch._foreach_lerp_(self.mean, list(self.model.parameters()), _MEAN_SHARE)

    def state(self, loss: float) -> dict[str, Any]:
        """Return what is saved, the mean of the weights beside them."""
        names = (name for name, _ in self.model.named_parameters())
        return {**super().state(loss), "mean": dict(zip(names, self.mean, strict=True))}


def train_further(
    trainer: Further, left: Callable[[], float], show: Callable[[], None] = lambda: None
) -> None:
    """Train until no time is left, saving the state at times; `show` is called once a minute."""
    clock = looked = time.monotonic()
    for batches in trainer.steps():
        if left() <= 0:
            break
        trainer.learn(batches)
        if time.monotonic() - looked > _LOOK_SECONDS:
            show()
            looked = time.monotonic()
        if trainer.step % _PRINT_EVERY:
            continue
        loss = trainer.mean_loss()
        trainer.seconds, clock = trainer.seconds + time.monotonic() - clock, time.monotonic()
        print(
            f"step {trainer.step}, loss {loss:.4f}, {trainer.tokens} tokens, left {left():.3f}",
            flush=True,
        )
        if trainer.step % _SAVE_EVERY == 0:
            trainer.save(loss)
    trainer.seconds += time.monotonic() - clock
    trainer.save(trainer.mean_loss() if trainer.num_unseen_steps else 0.0)
    show()


def show_answers(trainer: Further, watch: Watch) -> None:
    """Print how each kind of dialogue fares, and answers to first messages."""
    trainer.model.settle()
    print(watch.losses(trainer.model, trainer.device))
    print(look(trainer.model, trainer.device), flush=True)


def main() -> None:
    """Read the command line and train."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    plan = PLANS[device]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, default=bundled_nano())
    parser.add_argument("--out", type=Path, default=Path("build/nano-further"))
    parser.add_argument("--seconds", type=float, default=1000)
    parser.add_argument("--tokens", type=int, default=plan.tokens)
    parser.add_argument("--workers", type=int, default=plan.workers)
    arguments = parser.parse_args()
    start_state(arguments.source, arguments.out)
    plan = Plan(plan.steps, plan.late_steps, arguments.tokens, plan.rate, arguments.workers)
    start, seconds = time.monotonic(), float(arguments.seconds)

    def left() -> float:
        return 1 - (time.monotonic() - start) / seconds

    torch.manual_seed(SEED)
    trainer, watch = Further(plan, arguments.out, device, left), Watch()
    train_further(trainer, left, lambda: show_answers(trainer, watch))


if __name__ == "__main__":
    main()
