"""Training packed weights further: they are read back whole, and words with a meaning stay."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest
import torch

from profiles.checkpoints.compact import WEIGHTS, bundled_nano
from tools.nano.first_messages import is_kept_out
from tools.nano.further import Further, meant_words, start_state, train_further
from tools.nano.pack import compact_tensors, load_state, pack_safetensors
from tools.nano.rows import make_makeup, swapped
from tools.nano.tokens import encode
from tools.nano.train import Plan
from tools.nano.unpack import load_packed
from tools.nano.watch import WANTED, look

pytestmark = pytest.mark.slow  # of use to those who train nano anew; what ships is tested apart


def test_packed_weights_are_read_back_bit_for_bit() -> None:
    model, manifest = load_packed(bundled_nano())
    packed = lzma.decompress((bundled_nano() / WEIGHTS).read_bytes())
    assert pack_safetensors(compact_tensors(model)) == packed
    assert manifest["num_learnt_ids"] == len(model.makeup.learnt)


def test_words_with_a_meaning_keep_their_vectors() -> None:
    assert {"weather", "eighteen", "monday", "umbrella"} <= meant_words()
    makeup = make_makeup(5, [])
    words, pieces = swapped(makeup, frozenset({"weather"}))
    weather, digits = makeup.word[encode(" weather")[0]], encode("18")[0]
    assert weather not in words
    assert makeup.word[encode(" heather")[0]] in words
    assert list(makeup.written).index(digits) not in pieces


def test_a_part_ends_with_its_time_and_saves_the_mean_of_its_weights(tmp_path: Path) -> None:
    start_state(bundled_nano(), tmp_path)
    looks = iter([1.0, 1.0, 0.5, 0.25, 0.25])

    def left() -> float:
        return next(looks, 0.0)

    plan = Plan(steps=1, late_steps=1, tokens=900, rate=2e-3, workers=0)
    trainer = Further(plan, tmp_path, "cpu", left)
    first = trainer.step
    train_further(trainer, left)
    state = torch.load(tmp_path / "state.pt")
    assert first < state["step"] <= first + 2
    assert state["mean"].keys() == dict(trainer.model.named_parameters()).keys()
    mean, _ = load_state(tmp_path / "state.pt", is_mean=True)
    assert torch.equal(mean.norm.weight, state["mean"]["norm.weight"])
    assert not torch.equal(mean.norm.weight, state["model"]["norm.weight"])


def test_messages_to_look_at_are_not_those_that_are_measured() -> None:
    assert not [message for message, _ in WANTED if is_kept_out(message)]


def test_a_look_counts_right_answers_and_shows_wrong_ones() -> None:
    model, _ = load_packed(bundled_nano())
    asked = (("yo nano", "Hello!"), ("yo nano", "Goodbye!"))
    counted, *wrong = look(model, "cpu", asked).splitlines()
    assert counted == "of 2 first messages 1 right, 0 flat refusals, 0 echoes"
    assert len(wrong) == 1
    assert wrong[0].startswith("  'yo nano': 'Hello!")
