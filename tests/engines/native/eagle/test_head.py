"""The head as published: its guesses against float64, whatever way its K/V came about."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from engines.base import SamplingParams
from engines.native.backends.base import Sampled, SlotStart
from engines.native.backends.cpu.backend import TorchModel
from engines.native.config import ModelConfig, NativeConfig
from engines.native.eagle.config import Llama3Rope
from engines.native.eagle.rope import rotation_tables
from engines.native.host.slots import Slot, Span
from tests.engines.native.eagle.reference import ReferenceHead, head_config

TEXT = [(7 * i * i + 3) % 60 for i in range(23)]
NUM = 4


def slot_of(token_ids: list[int], first_block: int) -> Slot:
    """A sequence with blocks of its own, in an order that is no order."""
    blocks = [first_block + (3 * i) % 10 for i in range(10)]
    window = [block + 20 for block in blocks]
    start = SlotStart(
        0, tuple(token_ids), len(token_ids), tuple(blocks), tuple(window), SamplingParams(1), 0
    )
    return Slot(start)


@pytest.fixture
def model(folders: Any) -> TorchModel:
    options: dict[str, Any] = {"block_size": 4, "num_kv_blocks": 80, "max_num_seqs": 2}
    config = NativeConfig(folders.model, speculation="eagle3", draft_dir=folders.head(), **options)
    return TorchModel(config, ModelConfig.from_dir(folders.model))


def states_of(model: TorchModel, token_ids: list[int]) -> torch.Tensor:
    """What the head sees of the target, computed in one go."""
    assert model.guesser is not None
    seen: list[torch.Tensor] = []
    fuse = model.guesser._head.fuse

    def spy(states: torch.Tensor) -> torch.Tensor:
        seen.append(states.clone())
        return fuse(states)

    model.guesser._head.fuse = spy  # type: ignore[method-assign]
    span = Span(slot_of(token_ids, 40), 0, len(token_ids), is_last=False)
    model.forward([span])
    model.guesser._head.fuse = fuse  # type: ignore[method-assign]
    return seen[0]


def guesses_after(model: TorchModel, pieces: list[tuple[int, int, tuple[int, ...]]]) -> list[int]:
    """The head's guesses after TEXT, computed in pieces: start, end and drafts at the end."""
    assert model.guesser is not None
    slot = slot_of(TEXT, 1)
    for start, end, drafts in pieces:
        span = Span(slot, start, end + len(drafts), is_last=end == len(TEXT) - 1, drafts=drafts)
        slot.token_ids = [*TEXT[:end]]
        model.forward([span, Span(slot_of(TEXT[::-1], 11), 0, 9, is_last=False)])
    slot.token_ids = [*TEXT]
    span = span._replace(num_wanted=NUM)
    [proposed] = model.guesser.propose([span], [Sampled((TEXT[-1],))])
    return [*proposed]


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([(0, 22, ())], id="at once"),
        pytest.param([(0, 7, ()), (7, 8, ()), (8, 22, ())], id="in chunks"),
        pytest.param(
            [(0, 20, (9, 9, 9)), (20, 21, (5,)), (21, 22, (8, 8))], id="after wrong drafts"
        ),
        pytest.param([(0, 19, ()), (19, 20, (TEXT[20], TEXT[21]))], id="after right drafts"),
    ],
)
def test_guesses_are_those_of_the_published_forward(
    model: TorchModel, folders: Any, pieces: list[tuple[int, int, tuple[int, ...]]]
) -> None:
    states = states_of(model, TEXT[:-1])
    tensors = load_file(folders.heads / "head" / "model.safetensors")
    config = head_config({"hidden_size": 32, "vocab_size": 60, "num_hidden_layers": 4})
    reference = ReferenceHead(config, tensors, folders.embedding)
    expected = reference.guesses(TEXT, states, NUM)
    assert len(set(expected)) > 2
    assert all(token % 2 == 0 for token in expected)  # by d2t
    assert guesses_after(model, pieces) == expected


def test_who_goes_on_from_a_cached_prefix_guesses_the_same(model: TorchModel) -> None:
    expected = guesses_after(model, [(0, 22, ())])
    # Another sequence with the same blocks, that has computed nothing of the first 12 positions.
    assert guesses_after(model, [(12, 22, ())]) == expected
    other = guesses_after(model, [(13, 22, ())])  # g of the position before is not known then
    assert len(other) == NUM


@pytest.mark.slow  # transformers takes seconds to import
def test_rotations_of_llama_3_are_those_of_transformers() -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    values = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = LlamaConfig(
        hidden_size=256, num_attention_heads=4, head_dim=64, rope_parameters=values
    )
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    cosines, sines = rotation_tables(Llama3Rope(500000.0, 8.0, 1.0, 4.0, 8192), 64, 5)
    angles = torch.outer(torch.arange(5).float(), frequencies)
    torch.testing.assert_close(cosines, angles.cos())
    torch.testing.assert_close(sines, angles.sin())
