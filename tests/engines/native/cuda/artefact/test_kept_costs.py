"""Step times that one start measures are taken by those after it, while they fit."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engines.native.backends.cuda.artefact.parts import costs_part
from engines.native.backends.cuda.card import KNOWN, Card
from engines.native.backends.cuda.offline.published import gpt_oss
from engines.native.config import ModelConfig, NativeConfig
from engines.native.loop.limits import SchedulerLimits
from engines.native.step_costs import StepCosts
from tests.engines.native.cuda.artefact.artefact_case import damage
from tests.engines.native.scheduling.simulation import h200

from engines.native.backends.cuda.artefact.kept import Artefact  # isort: skip

CARD, MODEL = KNOWN[90], gpt_oss("20b")
LIMITS = SchedulerLimits(131_072, 512, 8192)
OTHER = StepCosts.from_dict({**h200().as_dict(), "per_context": 1.0})


@pytest.fixture
def plain(tmp_path: Path) -> NativeConfig:
    """An engine without a checkpoint: the step times do not depend on it."""
    return NativeConfig(tmp_path, "cuda", dtype="bfloat16", artefact_dir=tmp_path / "store")


class Start:
    """Starts with one artefact, which count how often they measure."""

    def __init__(self, config: NativeConfig, measured: StepCosts | None = None) -> None:
        self.num_measured = 0
        self._config, self._measured = config, measured or h200()

    def costs(
        self, card: Card = CARD, model: ModelConfig = MODEL, limits: SchedulerLimits = LIMITS
    ) -> StepCosts:
        return Artefact(self._config, model).step_costs(card, limits, self._measure)

    def _measure(self) -> StepCosts:
        self.num_measured += 1
        return self._measured


def costs_file(config: NativeConfig) -> Path:
    assert config.artefact_dir is not None
    return config.artefact_dir / costs_part(config, MODEL, CARD, LIMITS).name / "costs.json"


def test_what_a_start_measures_is_taken_by_the_next(
    plain: NativeConfig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first, second = Start(plain), Start(plain, OTHER)
    assert first.costs().as_dict() == h200().as_dict()
    assert first.num_measured == 1
    assert "an earlier start measured" not in caplog.text
    caplog.clear()
    assert second.costs().as_dict() == h200().as_dict()
    assert second.num_measured == 0
    assert [record.getMessage() for record in caplog.records] == [
        "Step times: those that an earlier start measured"
    ]


@pytest.mark.parametrize(
    ("card", "model", "limits"),
    [
        (replace(CARD, name="NVIDIA H100"), MODEL, LIMITS),
        (replace(CARD, num_sms=66), MODEL, LIMITS),
        (CARD, gpt_oss("120b"), LIMITS),
        (CARD, MODEL, replace(LIMITS, max_num_seqs=256)),
        (CARD, MODEL, replace(LIMITS, max_num_batched_tokens=2048)),
        (CARD, MODEL, replace(LIMITS, max_model_len=4096)),  # no longer chunk
    ],
)
def test_another_card_model_or_limit_is_measured_and_kept_beside_it(
    plain: NativeConfig, card: Card, model: ModelConfig, limits: SchedulerLimits
) -> None:
    Start(plain).costs()
    other = Start(plain, OTHER)
    for _ in range(2):
        assert other.costs(card, model, limits).as_dict() == OTHER.as_dict()
    assert other.num_measured == 1
    assert Start(plain, OTHER).costs().as_dict() == h200().as_dict()


@pytest.mark.parametrize(
    "changed",
    [
        {"kv_dtype": "fp8"},
        {"block_size": 64},
        {"num_gpus": 2},
        {"batch_invariant": True},
        {"speculation": "ngram"},
    ],
)
def test_another_option_that_changes_a_step_is_measured(
    plain: NativeConfig, changed: dict[str, object]
) -> None:
    Start(plain).costs()
    other = Start(replace(plain, **changed))  # type: ignore[arg-type]
    other.costs()
    assert other.num_measured == 1


def test_what_no_step_depends_on_leaves_them_valid(plain: NativeConfig) -> None:
    Start(plain).costs()
    other = Start(replace(plain, max_token_gap_ms=50.0, num_kv_blocks=100, memory_fraction=0.5))
    other.costs(limits=replace(LIMITS, max_model_len=65_536, max_token_gap_s=0.05))
    assert other.num_measured == 0


def test_an_upgrade_measures_again(plain: NativeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    Start(plain).costs()
    monkeypatch.setattr(
        "engines.native.backends.cuda.artefact.parts.sources_digest", lambda folder: folder.name
    )
    upgraded = Start(plain, OTHER)
    assert upgraded.costs().as_dict() == OTHER.as_dict()
    assert upgraded.costs().as_dict() == OTHER.as_dict()
    assert upgraded.num_measured == 1
    assert costs_file(plain).exists()  # it replaced the other


def test_kernel_variants_that_were_tuned_since_are_measured(plain: NativeConfig) -> None:
    Start(plain).costs()
    Artefact(replace(plain, tune=True), MODEL).choices(CARD, lambda choices: choices)
    tuned = Start(plain, OTHER)
    for _ in range(2):
        assert tuned.costs().as_dict() == OTHER.as_dict()
    assert tuned.num_measured == 1


@pytest.mark.parametrize(
    "harm",
    [
        damage,
        lambda path: path.write_bytes(b"\xff" * path.stat().st_size),
        lambda path: path.write_text("{}"),
        Path.unlink,
        lambda path: (path.parent / "manifest.json").write_text("{"),
    ],
)
def test_damaged_ones_are_measured_again(
    plain: NativeConfig, harm: Callable[[Path], object]
) -> None:
    Start(plain).costs()
    harm(costs_file(plain))
    again = Start(plain)
    for _ in range(2):
        assert again.costs().as_dict() == h200().as_dict()
    assert again.num_measured == 1


def test_where_they_cannot_be_kept_they_are_measured_once_at_each_start(
    plain: NativeConfig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert plain.artefact_dir is not None
    plain.artefact_dir.write_text("no folder can be made here")
    for _ in range(2):
        start = Start(plain)
        assert start.costs().as_dict() == h200().as_dict()
        assert start.num_measured == 1
    assert "The measured step times cannot be saved" in caplog.text
    assert all(record.levelno == logging.INFO for record in caplog.records)


def test_a_disk_that_fills_up_while_they_are_kept_costs_no_second_measurement(
    plain: NativeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_text = Path.write_text

    def full(path: Path, *given: str, **options: str) -> int:
        if path.name == "manifest.json":
            raise OSError(28, "No space left on device")
        return write_text(path, *given, **options)

    monkeypatch.setattr(Path, "write_text", full)
    start = Start(plain)
    assert start.costs().as_dict() == h200().as_dict()
    assert start.num_measured == 1


def test_without_an_artefact_each_start_measures(plain: NativeConfig) -> None:
    start = Start(replace(plain, artefact_dir=None))
    for _ in range(2):
        start.costs()
    assert start.num_measured == 2
