"""How fast a GPU trains, and whether its graphs are right: `python -m tools.nano.pace`.

Run it first on a machine that a long run is planned for: it takes about two minutes, most of
them compiling. Exit status 1 says that training should run its kernels one by one.
"""

from __future__ import annotations

import itertools
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from profiles.checkpoints.compact import bundled_nano
from tools.nano.batches import Batch
from tools.nano.captured import Captured
from tools.nano.further import Further, start_state
from tools.nano.train import PLANS

_STEPS = 40
_MOST_APART = 0.03  # of the gradients' norm; two plain runs are apart too


def gradients(trainer: Further, step: Sequence[Batch]) -> tuple[float, list[Tensor]]:
    """Return a step's loss and gradients, from none."""
    for parameter in trainer.model.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        parameter.grad.zero_()
    num_predicted = sum(len(batch.wanted) for batch in step)
    loss = sum(float(trainer.add_gradients(batch, num_predicted)) for batch in step)
    grads = [parameter.grad for parameter in trainer.model.parameters()]
    return loss, [grad.clone() for grad in grads if grad is not None]


def apart(ones: Sequence[Tensor], others: Sequence[Tensor]) -> float:
    """Return how far gradients are from each other, as a share of the first ones' norm."""
    pairs = zip(ones, others, strict=True)
    distance = sum(float((one - two).square().sum()) for one, two in pairs)
    return math.sqrt(distance / sum(float(one.square().sum()) for one in ones))


def pace(trainer: Further, name: str, steps: Sequence[Sequence[Batch]]) -> None:
    """Print how fast the gradients of steps are computed, no data being waited for."""
    torch.cuda.synchronize()
    began = time.monotonic()
    for step in steps:
        num_predicted = sum(len(batch.wanted) for batch in step)
        for batch in step:
            trainer.add_gradients(batch, num_predicted)
    launched = time.monotonic() - began
    torch.cuda.synchronize()
    took = time.monotonic() - began
    tokens = sum(batch.ids.size for step in steps for batch in step)
    print(
        f"{name}: {len(steps) / took:.1f} steps/s, {tokens / took / 1e6:.2f} M tokens/s,"
        f" {launched / took:.0%} of it launching",
        flush=True,
    )


def main() -> None:
    """Compare and measure."""
    with tempfile.TemporaryDirectory() as folder:
        start_state(bundled_nano(), Path(folder))
        plain = replace(PLANS["cuda"], is_captured=False)
        trainer = Further(plain, Path(folder), "cuda", lambda: 1.0)
        began = time.monotonic()
        steps = list(itertools.islice(trainer.steps(), _STEPS))
        print(f"{_STEPS} steps of data came in {time.monotonic() - began:.1f} s", flush=True)
        trainer.model.settle()
        loss, grads = gradients(trainer, steps[0])
        print(f"the same again: {apart(grads, gradients(trainer, steps[0])[1]):.4f} apart")
        pace(trainer, "plain, first", steps)
        pace(trainer, "plain", steps)
        trainer.captured = Captured(trainer.model)
        other_loss, others = gradients(trainer, steps[0])
        print(f"loss {loss:.5f} and {other_loss:.5f}, gradients {apart(grads, others):.4f} apart")
        pace(trainer, "graphs, first", steps)
        pace(trainer, "graphs", steps)
        again = gradients(trainer, steps[0])[1]  # a graph that ran before, after all others
        if trainer.captured is None:
            sys.exit("Graphs do not run.")
        print(f"{len(trainer.captured)} graphs in {trainer.captured.seconds:.0f} s")
        if not max(apart(grads, others), apart(grads, again)) < _MOST_APART:
            sys.exit("Graphs compute other gradients.")


if __name__ == "__main__":
    main()
