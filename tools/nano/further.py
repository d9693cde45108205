"""Train packed weights further: `python -m tools.nano.further --seconds 1000`.

The part begins from the weights that ship, with fresh moments, and ends when its time is over. The
learning rate warms up, stays for half of the time and falls to 0. For two thirds of the time every
other step swaps the vectors of all words but those whose meaning counts: number words, and what
first requests and questions about the service are worded with.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from profiles.checkpoints.compact import bundled_nano
from tools.nano import first_minute, wishes
from tools.nano.batches import Batch, Steps
from tools.nano.dialogues import Writer
from tools.nano.first_words import MEANT
from tools.nano.rows import swapped
from tools.nano.spelling import copy_of
from tools.nano.tokens import encode, text_of
from tools.nano.train import PLANS, SEED, STOPPED, Plan, Trainer
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
    known = " ".join([*texts, *MEANT, first_minute.texts()])
    meant = set(_stems(known)) | {stem(text_of(i).strip()) for i in _ids(known)}
    writer, count = Writer(SEED, "train"), Counter[str]()
    for _ in range(_COUNTED_REQUESTS):
        prompt = writer.dialogue("first")[0].prompt
        told = [tool.description for tool in prompt.tools]
        said = [message.content for message in prompt.messages]
        count.update(set(_stems(" ".join([*said, *told, *(tool.name for tool in prompt.tools)]))))
    return frozenset(meant | {w for w, n in count.items() if n > _LEAST_SHARE * _COUNTED_REQUESTS})


def _ids(text: str) -> set[int]:
    """All ids of a text, also where its words stand alone or are capitalised."""
    parts = [text, *(form(part) for part in set(text.split()) for form in (str, str.capitalize))]
    return {token_id for part in parts for token_id in encode(part)}


_MEANT = ("about.txt", "unknown.txt", "phrases.txt")


def _stems(text: str) -> list[str]:
    bare = "".join(letter if letter.isalpha() else " " for letter in text)
    return [stem(word) for word in bare.split()]


def said_pieces() -> frozenset[int]:
    """Return the ids that set answers are written with, and what the reasoning calls a wish."""
    named = (
        copy_of(encode(f" {name}"))
        for name in ("a sum.", "the numbers to 5.", *wishes.reasonings())
    )
    return frozenset(wishes.written(first_minute.set_words())).union(*named)


class Further(Trainer):
    """A trainer whose part is as long as its time; `left` says what share of it is left."""

    def __init__(self, plan: Plan, out: Path, device: str, left: Callable[[], float]) -> None:
        super().__init__(plan, out, SEED, device)
        self._left = left
        state = torch.load(self.state_path, map_location=device)
        self._num_steps: int = state.get("further_steps", 0)
        others = swapped(self.model.makeup, meant_words(), said_pieces())
        self.swapped = [torch.from_numpy(part).to(device) for part in others]
        mean = state.get("mean", {})
        named = self.model.named_parameters()
        self.mean = [mean.get(name, parameter.detach()).clone() for name, parameter in named]

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
        own = {"further_steps": self._num_steps, "left": self._left()}
        return {**super().state(loss), "mean": dict(zip(names, self.mean, strict=True)), **own}


def train_further(
    trainer: Further, left: Callable[[], float], show: Callable[[], None] = lambda: None
) -> None:
    """Train until no time is left, saving the state at times; `show` is called once a minute."""
    clock = looked = time.monotonic()
    for batches in trainer.batches():
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
            f"step {trainer.step}, loss {loss:.4f}, {trainer.tokens} tokens, left {left():.3f},"
            f" {trainer.pace()}",
            flush=True,
        )
        if trainer.step % _SAVE_EVERY == 0:
            trainer.save(loss)
    trainer.seconds += time.monotonic() - clock
    trainer.save(trainer.mean_loss() if trainer.num_unseen_steps else 0.0)
    if not trainer.is_stopped:
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
    parser.add_argument("--no-graphs", action="store_true", help="run kernels one by one")
    arguments = parser.parse_args()
    state_path = arguments.out / "state.pt"
    if not state_path.exists():
        start_state(arguments.source, arguments.out)
    still_left = torch.load(state_path, map_location="cpu").get("left", 1.0)
    plan = Plan(
        plan.steps, plan.late_steps, arguments.tokens, plan.rate, arguments.workers,
        is_captured=not arguments.no_graphs,
    )  # fmt: skip
    start = time.monotonic()

    def left() -> float:
        return float(still_left - (time.monotonic() - start) / arguments.seconds)

    torch.manual_seed(SEED)
    trainer, watch = Further(plan, arguments.out, device, left), Watch()
    signal.signal(signal.SIGTERM, trainer.stop)
    start = time.monotonic()  # what came before is no training
    train_further(trainer, left, lambda: show_answers(trainer, watch))
    if trainer.is_stopped:
        sys.exit(STOPPED)


if __name__ == "__main__":
    main()
