"""Random tiny checkpoints in the published format, and transformers as the oracle."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engines.base import SamplingParams
from engines.native.backends.base import Capacity, SlotStart
from engines.native.backends.cpu.backend import TorchModel
from engines.native.config import ModelConfig, NativeConfig
from engines.native.host.slots import Slot, Span
from tests.engines.native.small_model import ROPE, THETA, write_small

if TYPE_CHECKING:
    from transformers import GptOssForCausalLM

SHAPE: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_local_experts": 8,
    "num_experts_per_tok": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "sliding_window": 8,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "rope_parameters": {**ROPE, "rope_theta": THETA},
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass
class Folder:
    """A checkpoint on disk."""

    path: Path
    tensors: dict[str, Tensor]

    @property
    def window(self) -> int:
        return int(json.loads((self.path / "config.json").read_text())["sliding_window"])

    def write(self) -> None:
        save_file(self.tensors, self.path / "model.safetensors")

    def write_config(self, **changes: Any) -> None:
        path = self.path / "config.json"
        config = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))

    def load(self, **options: Any) -> TorchModel:
        options = {"max_num_seqs": 4, "block_size": 4, "num_kv_blocks": 600, **options}
        return TorchModel(NativeConfig(self.path, **options), ModelConfig.from_dir(self.path))

    def capacity(self, **options: Any) -> Capacity:
        return self.load(**options).capacity


@dataclass
class CheckpointFolder(Folder):
    """With the transformers model it was made from."""

    oracle: GptOssForCausalLM

    def logits(self, token_ids: list[int]) -> Tensor:
        """The oracle's logits after every token: (tokens, vocabulary)."""
        with torch.inference_mode():
            logits: Tensor = self.oracle(torch.tensor([token_ids])).logits[0].float()
        return logits


class Walk:
    """A sequence that is computed by hand."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        start = SlotStart(0, tuple(token_ids), len(token_ids), (), (), SamplingParams(1), seed=0)
        self.slot = Slot(start)
        self.token_ids = self.slot.token_ids
        self.num_computed_tokens = 0


class Driver:
    """Schedules by hand: hands out blocks, frees what the window left, runs steps."""

    def __init__(self, model: TorchModel, window: int) -> None:
        self._model, self._window = model, window
        self._block_size = model.capacity.block_size
        self._free = list(range(model.capacity.num_blocks - 1, 0, -1))

    def sequence(self, token_ids: Sequence[int]) -> Walk:
        return Walk(token_ids)

    def step(self, *work: tuple[Walk, int]) -> Tensor:
        """Compute num_tokens more of each sequence in one pass."""
        spans = []
        for sequence, num_tokens in work:
            start = sequence.num_computed_tokens
            sequence.num_computed_tokens = end = start + num_tokens
            self._grow(sequence.slot, end)
            spans.append(Span(sequence.slot, start, end, end == len(sequence.token_ids)))
        logits = self._model.forward(spans)
        for sequence, _ in work:
            self._release(sequence)
        return logits.spread()

    def _grow(self, slot: Slot, num_tokens: int) -> None:
        while len(slot.full_blocks) * self._block_size < num_tokens:
            slot.full_blocks.append(self._free.pop())
            slot.window_blocks.append(self._free.pop())

    def _release(self, sequence: Walk) -> None:
        """Reuse what is wholly behind the window of the next token at once."""
        num_behind = (sequence.num_computed_tokens - self._window + 1) // self._block_size
        blocks = sequence.slot.window_blocks
        for index in range(max(num_behind, 0)):
            if blocks[index]:
                self._free.append(blocks[index])
                blocks[index] = 0


@pytest.fixture
def drive() -> Callable[[Folder, TorchModel], Driver]:
    """drive(checkpoint, model) schedules by hand for that checkpoint's window."""
    return lambda folder, model: Driver(model, folder.window)


@pytest.fixture
def token_ids() -> Callable[[int], list[int]]:
    """token_ids(n): n random ids, the same in every run."""
    generator = torch.Generator().manual_seed(1)
    return lambda num: torch.randint(0, 128, (num,), generator=generator).tolist()


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[..., Folder]:
    """make_folder(**config changes): a checkpoint for tests that need no oracle."""

    def make(**changes: Any) -> Folder:
        write_small(tmp_path, {**SHAPE, "model_type": "gpt_oss", "rms_norm_eps": 1e-5, **changes})
        return Folder(tmp_path, load_file(tmp_path / "model.safetensors"))

    return make


@pytest.fixture
def make_checkpoint(tmp_path: Path) -> Callable[..., CheckpointFolder]:
    """make_checkpoint(**config changes) writes one safetensors file and its config.json."""
    # Seconds to import: only those who run these tests pay for it, not all who collect.
    from transformers import GptOssConfig, GptOssForCausalLM

    def make(**changes: Any) -> CheckpointFolder:
        torch.manual_seed(0)
        config = GptOssConfig(**{**SHAPE, **changes})
        config._attn_implementation = "eager"
        model = GptOssForCausalLM(config)
        model.train(False)
        _randomise(model)
        model.config.save_pretrained(tmp_path)
        state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
        if config.tie_word_embeddings:
            del state["lm_head.weight"]
        folder = CheckpointFolder(tmp_path, state, model)
        folder.write()
        return folder

    return make


@torch.no_grad()
def _randomise(model: GptOssForCausalLM) -> None:
    """Give every tensor values that matter: transformers starts some of them at 0 or 1."""
    for name, parameter in model.named_parameters():
        noise = torch.randn_like(parameter)
        if "norm" in name:
            parameter.copy_(1 + 0.2 * noise)
        elif name.endswith("bias") or "sinks" in name or "experts" in name:
            parameter.copy_(0.5 * noise)
        else:
            parameter.copy_(0.3 * noise)
