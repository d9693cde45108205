"""`build-engine --tune` on this machine's GPU: how long it takes, and what a step gains.

    python -m tools.benchmarks.gpu_tune [--model 20b] [--rows 8] [--json FILE]

Random weights. Twice: from the variants of compute capability 8.9, as on a card that nobody tuned,
and from those of the card itself, as a start with the option does: measured, kept, and taken by the
next start.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from engines.native.backends.cuda.artefact.kept import Artefact
from engines.native.backends.cuda.card import Card
from engines.native.backends.cuda.choices.of_card import CardChoices
from engines.native.backends.cuda.choices.untuned import ADA
from engines.native.backends.cuda.choices.variants import PARTS
from engines.native.backends.cuda.measuring import MeasuredSteps, measured
from engines.native.backends.cuda.offline.published import gpt_oss
from engines.native.backends.cuda.steps.shape import Shape
from engines.native.backends.cuda.weights.model import ModelWeights
from engines.native.config import ModelConfig, NativeConfig
from tools.benchmarks.random_model import random_weights

_BLOCK = 64


class Tuning:
    """A loaded model, and the variants for steps of up to so many rows."""

    def __init__(self, model: ModelConfig, weights: ModelWeights, rows: int) -> None:
        self._model, self._shape, self._weights, self._rows = model, Shape(model), weights, rows

    def step_ms(self, choices: CardChoices) -> dict[int, float | None]:
        """Median milliseconds of a step of each bucket."""
        steps, found = MeasuredSteps(self._shape, self._weights, _BLOCK), {}
        for rows in sorted({min(bucket, self._rows) for bucket in choices.table.decode}):
            found[rows] = steps.time(rows, choices.decode(rows), PARTS)
        return found

    def tune(self, choices: CardChoices) -> CardChoices:
        """Measure the variants."""
        return measured(choices, self._shape, self._weights, _BLOCK, self._rows)

    def kept(self, card: Card) -> CardChoices:
        """Tune by a start's own path; the start after it may measure nothing."""
        with tempfile.TemporaryDirectory(prefix="harmonium-tune-") as folder:
            config = NativeConfig(
                Path(folder), "cuda", "bfloat16", max_num_seqs=self._rows, block_size=_BLOCK,
                tune=True, artefact_dir=Path(folder) / "store",
            )  # fmt: skip
            won = Artefact(config, self._model).choices(card, self.tune)

            def refuse(_: CardChoices) -> CardChoices:
                raise AssertionError("the second start measures again")

            again = Artefact(replace(config, tune=False), self._model).choices(card, refuse)
            assert again.table == won.table
        return won


def compared(tuning: Tuning, before: CardChoices, *, is_kept: bool) -> dict[str, Any]:
    """Milliseconds with the variants given and with those that won."""
    began_s = time.perf_counter()
    won = tuning.kept(before.card) if is_kept else tuning.tune(before)
    took_s = time.perf_counter() - began_s
    tables = before.table.decode, won.table.decode
    return {
        "tuning_s": round(took_s, 1),
        "before_ms": tuning.step_ms(before),
        "after_ms": tuning.step_ms(won),
        "changed": {rows: str(one) for rows, one in tables[1].items() if one != tables[0][rows]},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=["20b", "120b"], default="20b")
    parser.add_argument("--rows", type=int, default=8, help="of the largest step that is tuned")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    device = torch.device("cuda")
    card, model = Card.of(device), gpt_oss(arguments.model)
    line: dict[str, Any] = {"gpu": card.name, "torch": torch.__version__, "model": arguments.model}
    with torch.inference_mode():
        weights = random_weights(model, 9000, device)
        tuning = Tuning(model, weights, arguments.rows)
        starts = {"from_8.9": CardChoices(card, ADA), "from_its_own": CardChoices(card)}
        for name, choices in starts.items():
            line[name] = compared(tuning, choices, is_kept=name == "from_its_own")
            print(name, json.dumps(line[name]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(line, indent=1) + "\n")


if __name__ == "__main__":
    main()
