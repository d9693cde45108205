"""The training model is gpt-oss: transformers computes the same logits from its export."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import Tensor

from profiles.checkpoints.compact import Makeup, expand
from tests.close import assert_close
from tools.nano.layers import Shape
from tools.nano.model import Nano, initialise
from tools.nano.pack import pack
from tools.nano.rows import make_makeup, swapped
from tools.nano.tokens import CALL, RETURN, encode

if TYPE_CHECKING:
    from transformers import GptOssForCausalLM

pytestmark = pytest.mark.slow  # of use to those who train nano anew; what ships is tested apart

SHAPE = Shape(
    hidden_size=48,
    head_dim=16,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
)
SEED = 3
PHRASES = sorted({*encode("The result is: Hello, I do not know."), RETURN, CALL})


@pytest.fixture(scope="module")
def makeup() -> Makeup:
    return make_makeup(SEED, PHRASES)


@pytest.fixture
def model(makeup: Makeup) -> Nano:
    model = Nano(SHAPE, makeup)
    initialise(model, SEED)
    generator = torch.Generator().manual_seed(4)
    for parameter in model.parameters():  # biases and sinks must count too
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
        parameter.data = parameter.data.bfloat16().float()
    return model


def _exported(model: Nano, folder: Path) -> GptOssForCausalLM:
    from transformers import GptOssForCausalLM

    shape = {name: getattr(SHAPE, name) for name in SHAPE.__slots__}
    figures = {"device": "cpu", "step": 1, "tokens": 1, "seconds": 1.0, "loss": 1.0, "seed": SEED}
    contents = {"model": model.state_dict(), "learnt": PHRASES, "shape": shape, **figures}
    torch.save(contents, folder / "state.pt")
    pack(folder / "state.pt", folder / "compact")
    expand(folder / "compact", folder / "checkpoint")
    return GptOssForCausalLM.from_pretrained(
        folder / "checkpoint", dtype=torch.float32, attn_implementation="eager"
    )


def _ids() -> Tensor:
    return torch.randint(0, SHAPE.vocab_size, (2, 200), generator=torch.Generator().manual_seed(5))


def test_export_has_the_training_models_logits(model: Nano, tmp_path: Path) -> None:
    published = _exported(model, tmp_path)
    written = torch.from_numpy(model.makeup.written).long()
    unwritten = 173_000
    assert unwritten not in model.makeup.written
    with torch.no_grad():
        expected = published(_ids()).logits
        found = model.logits(model(_ids()))
    assert_close(found[..., :-1], expected[..., written], atol=1e-4, rtol=1e-4)
    assert_close(found[..., -1], expected[..., unwritten], atol=1e-4, rtol=1e-4)


def test_loss_counts_every_id(makeup: Makeup) -> None:
    model = Nano(SHAPE, makeup)
    hidden = torch.zeros(3, SHAPE.hidden_size)  # every id is equally likely
    torch.nn.init.zeros_(model.learnt_head)
    loss = model.loss(hidden, torch.tensor([1, 2, 3]))
    each = torch.tensor(SHAPE.vocab_size).log().item()
    assert loss.item() == pytest.approx(3 * each, abs=1e-3)


def _row(model: Nano, text: str) -> Tensor:
    ids = encode(text)
    assert len(ids) == 1
    return model.embedding(torch.tensor(ids), model.drawn_head())[0]


def test_forms_of_a_word_are_alike_and_other_words_are_not(model: Nano) -> None:
    model.forms.data.zero_()
    likeness = torch.nn.functional.cosine_similarity
    paris, other_form, other = (_row(model, text) for text in (" Paris", "Paris", " London"))
    assert likeness(paris, other_form, dim=0) > 0.1 + likeness(paris, other, dim=0).abs()


def test_words_and_pieces_swap_their_vectors_and_learnt_ones_keep_theirs(model: Nano) -> None:
    words, pieces = (torch.from_numpy(part) for part in swapped(model.makeup))
    before = {text: _row(model, text) for text in (" weather", " Calgary")}
    head, learnt = model.head(), torch.from_numpy(model.makeup.learnt).long()
    model.swap_vectors(words, pieces)
    assert not torch.equal(_row(model, " weather"), before[" weather"])  # in known_tools.txt
    assert not torch.equal(_row(model, " Calgary"), before[" Calgary"])
    assert torch.equal(model.word_order[model.word_of[learnt]], model.word_of[learnt])
    changed = (model.head() != head).any(1)
    assert not changed[model.target_of[learnt]].any()
    assert changed.sum() > 0.99 * (len(head) - len(learnt) - 1)
    assert torch.equal(model.words.unique(dim=0), model.words[model.word_order].unique(dim=0))
    model.settle()
    assert torch.equal(_row(model, " Calgary"), before[" Calgary"])
    assert torch.equal(model.head(), head)


def test_only_what_is_learnt_moves(model: Nano) -> None:
    calgary, phrase = _row(model, " Calgary").detach(), _row(model, " know").detach()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    ids = torch.tensor([encode("The result is: I do not know.")])
    for _ in range(3):
        model.loss(model(ids)[0, :-1], model.target_of[ids[0, 1:]]).backward()
        model.forms.grad = None  # every row holds a form
        optimiser.step()
        optimiser.zero_grad()
    assert torch.equal(_row(model, " Calgary"), calgary)
    assert not torch.equal(_row(model, " know"), phrase)


def test_drawn_rows_never_change(makeup: Makeup) -> None:
    words, _ = makeup.drawn(8)  # the shipped weights were trained with these
    assert np.signbit(words[0]).tolist() == [True, False, False, True, False, True, False, True]
