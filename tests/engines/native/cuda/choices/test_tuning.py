"""`build-engine --tune`: which variants are measured, which win, and that a start takes them."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from engines.native.backends.cuda.artefact.kept import Artefact
from engines.native.backends.cuda.artefact.parts import choices_part
from engines.native.backends.cuda.card import KNOWN
from engines.native.backends.cuda.choices import stored
from engines.native.backends.cuda.choices.of_card import CardChoices
from engines.native.backends.cuda.choices.tuning import candidates, tuned
from engines.native.backends.cuda.choices.variants import Choices, Grouped, Table
from engines.native.backends.cuda.measuring import MeasuredSteps
from engines.native.backends.cuda.offline.published import gpt_oss
from engines.native.backends.cuda.steps.decode import DecodeStep
from engines.native.backends.cuda.steps.shape import Shape
from engines.native.config import NativeConfig
from tests.engines.native.cuda.kernels.kernel_fixtures import DEVICE, model_config
from tools.benchmarks.random_model import random_weights

CARD = KNOWN[89]
MODEL = gpt_oss("20b")


class Clock:
    """A card whose products are the faster the wider their tiles, but for some that do not run."""

    def __init__(self, *, widest_right: int = 256) -> None:
        self.prepared: list[Choices] = []
        self._widest_right = widest_right

    def prepare(self, rows: int, choices: list[Choices], parts: frozenset[str]) -> None:
        del rows, parts
        self.prepared += choices

    def time(self, rows: int, choices: Choices, parts: frozenset[str]) -> float | None:
        del rows
        if "qkv" not in parts:
            return 1.0
        return None if choices.qkv.bn > 128 else 1.0 / choices.qkv.bn

    def agree(self, rows: int, choices: Choices, others: Choices) -> bool:
        del rows, others
        return choices.qkv.bn <= self._widest_right


def table() -> Table:
    return CardChoices(CARD).table


def table_with_qkv(bn: int) -> Table:
    """The table with this width of the tiles of `qkv` for 8 rows."""
    decode = table().decode
    qkv = decode[8].qkv._replace(bn=bn)
    return replace(table(), decode={**decode, 8: replace(decode[8], qkv=qkv)})


def test_the_fastest_variant_that_runs_wins_and_noise_does_not() -> None:
    before, clock = table(), Clock()
    after = tuned(before, CARD.name, 32, clock)
    assert after.decode[8].qkv == before.decode[8].qkv._replace(bn=128)
    assert replace(after.decode[8], qkv=before.decode[8].qkv) == before.decode[8]
    assert after.decode[64] == before.decode[64]  # no step has so many rows
    assert CardChoices(CARD, after).is_measured
    assert len(clock.prepared) > 100


def test_a_variant_that_gives_other_logits_loses_to_the_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
    after = tuned(table_with_qkv(bn=32), CARD.name, 8, Clock(widest_right=64))
    assert after.decode[8].qkv.bn == 64
    assert "changes the logits" in caplog.text


def test_a_part_that_does_not_run_here_is_left_as_it_is() -> None:
    assert tuned(table_with_qkv(bn=256), CARD.name, 8, Clock()).decode[8].qkv.bn == 256


@pytest.mark.parametrize("rows", sorted(table().decode))
def test_candidates_are_new_and_fit_the_buffers(rows: int) -> None:
    choices = table().decode[rows]
    for group in ("qkv", "out", "head", "attention", "experts"):
        found = [*candidates(group, choices, rows)]
        assert found
        assert choices not in found
        for each in found:
            assert each.splits * rows <= 2048 or each.splits == 1
            assert each.head.splits == 1  # the buffer of its parts is as wide as a layer
            if isinstance(each.gate_up, Grouped) and isinstance(each.down, Grouped):
                assert each.gate_up.bm == each.down.bm  # one list of tiles


def test_a_table_comes_back_from_json() -> None:
    text = json.dumps(stored.to_json(table()))
    found = stored.of_json(json.loads(text), table(), "it")
    assert found == replace(table(), measured_on=("it",))
    with pytest.raises(ValueError, match="not kernel choices"):
        stored.of_json({"8": {"qkv": 3}}, table(), "it")
    with pytest.raises(ValueError, match="kernel choices for"):
        stored.of_json({}, table(), "it")


def test_what_was_measured_is_taken_by_later_starts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    config = NativeConfig(tmp_path, "cuda", dtype="bfloat16", artefact_dir=tmp_path / "store")
    measured: list[CardChoices] = []

    def tune(choices: CardChoices) -> CardChoices:
        measured.append(choices)
        return CardChoices(CARD, tuned(choices.table, CARD.name, 8, Clock()))

    assert Artefact(config, MODEL).choices(CARD, tune).table == table()
    assert not measured
    assert "not tuned for this GPU" in caplog.text
    won = Artefact(replace(config, tune=True), MODEL).choices(CARD, tune)
    assert won.decode(8, MODEL).qkv.bn == 128
    assert Artefact(config, MODEL).choices(CARD, tune).table == won.table
    assert Artefact(replace(config, tune=True), MODEL).choices(CARD, tune).table == won.table
    assert len(measured) == 1
    other = replace(CARD, name="another")
    assert Artefact(config, MODEL).choices(other, tune).table == table()

    assert config.artefact_dir is not None
    path = config.artefact_dir / choices_part(CARD, MODEL, config).name / "choices.json"
    path.write_text(path.read_text().replace("128", "256"))
    assert Artefact(replace(config, tune=True), MODEL).choices(CARD, tune).table == won.table
    assert len(measured) == 2


@pytest.mark.slow  # three engines in Triton's interpreter
def test_steps_of_variants_are_compared_by_their_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    config = model_config()
    weights = random_weights(config, 1024, DEVICE)
    steps = MeasuredSteps(Shape(config), weights, block_size=64)
    choices = CardChoices.of(DEVICE).decode(2, config)
    assert steps.agree(2, choices, replace(choices, context_tile=64, min_split=128))
    odd = replace(choices, context_tile=64, splits=1)
    run = DecodeStep.run

    def broken(step: DecodeStep) -> None:
        """As a variant that is compiled to something else."""
        step.skipped = frozenset({"out"}) if step._choices == odd else frozenset()
        run(step)

    monkeypatch.setattr(DecodeStep, "run", broken)
    assert not steps.agree(2, odd, choices)
