"""The training model is gpt-oss: transformers computes the same logits from its export."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import GptOssForCausalLM

from nano.model import Nano, Shape
from nano.pack import pack
from nano.start import hold_rows, initialise
from profiles.compact import expand

SHAPE = Shape(hidden_size=48, head_dim=16, num_attention_heads=4, num_key_value_heads=2)
VOCABULARY = [11, 220, 279, 1000, 5000, 13225, 200005, 200006, 200007, 200008]


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = Nano(SHAPE, len(VOCABULARY) + 1)
    initialise(model, VOCABULARY, seed=3)
    generator = torch.Generator().manual_seed(4)
    for parameter in model.parameters():  # biases and sinks must count too
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
        parameter.data = parameter.data.bfloat16().float()
    path = tmp_path_factory.mktemp("state") / "state.pt"
    shape = {name: getattr(SHAPE, name) for name in SHAPE.__slots__}
    figures = {"device": "cpu", "step": 1, "tokens": 1, "seconds": 1.0, "loss": 1.0, "seed": 3}
    contents = {"model": model.state_dict(), "vocabulary": VOCABULARY, "shape": shape, **figures}
    torch.save(contents, path)
    return path


@pytest.fixture(scope="module")
def checkpoint(state: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nano")
    pack(state, folder / "compact")
    expand(folder / "compact", folder / "checkpoint")
    return folder / "checkpoint"


def test_export_has_the_training_models_logits(state: Path, checkpoint: Path) -> None:
    model = Nano(SHAPE, len(VOCABULARY) + 1)
    model.load_state_dict(torch.load(state)["model"])
    published = GptOssForCausalLM.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="eager"
    )
    rows = torch.randint(
        0, len(VOCABULARY) + 1, (2, 200), generator=torch.Generator().manual_seed(5)
    )
    unmet_id = 7
    ids = torch.tensor([unmet_id, *VOCABULARY])[rows]
    with torch.no_grad():
        expected = published(ids).logits
        found = model.logits(model(rows))
    torch.testing.assert_close(found[..., 1:], expected[..., VOCABULARY], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(found[..., 0], expected[..., unmet_id], atol=1e-4, rtol=1e-4)


def test_loss_counts_every_unmet_id() -> None:
    model = Nano(SHAPE, len(VOCABULARY) + 1)
    hidden = torch.zeros(3, SHAPE.hidden_size)  # every id is equally likely
    loss = model.loss(hidden, torch.tensor([1, 2, 3]))
    each = torch.tensor(SHAPE.vocab_size).log().item()
    assert loss.item() == pytest.approx(3 * each, abs=1e-3)


def test_held_rows_stay_while_the_others_learn() -> None:
    model = Nano(SHAPE, len(VOCABULARY) + 1)
    initialise(model, VOCABULARY, seed=3)
    before = model.rows.detach().clone()
    held = [2, 3, 7]
    hold_rows(model, held)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    for _ in range(3):
        rows = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8]])
        model.loss(model(rows)[0, :-1], rows[0, 1:]).backward()
        optimiser.step()
        optimiser.zero_grad()
    is_same = (model.rows == before).all(1)
    assert is_same[held].all()
    assert not is_same[[1, 4, 5, 6, 8]].any()
