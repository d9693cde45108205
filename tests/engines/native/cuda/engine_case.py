"""The native engine's core over the CUDA backend with a random model, and its greedy answers'
oracle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from engines.base import EngineRequest, SamplingParams, TokenEvent
from engines.errors import EngineError
from engines.native.assemble import assemble_core
from engines.native.backends.base import Capacity
from engines.native.backends.cuda.backend import CudaBackend
from engines.native.backends.cuda.memory.adapter_room import AdapterRoom
from engines.native.backends.cuda.passes.stages import ModelPart
from engines.native.backends.cuda.steps.shape import Shape
from engines.native.backends.cuda.steps.verify import draft_capacity
from engines.native.backends.cuda.weights.model import ModelWeights
from engines.native.config import ModelConfig, NativeConfig, Speculation
from engines.native.kv_pool import layers_per_group
from engines.native.layer_split import part_of, split_layers
from engines.native.loop.core import EngineCore
from engines.native.loop.sequence import Sequence
from tests.engines.native.cuda.kernels.kernel_fixtures import DEVICE
from tests.engines.native.cuda.reference import forward_reference
from tools.benchmarks.random_model import part_of_weights

MARGIN = 0.15  # of logits of about unit variance: a choice nearer than this may go either way
BLOCK = 16
PIECE = 512  # tokens of a prompt that the oracle takes at once: scores of all take too much memory


@dataclass
class EngineCase:
    """A model on its device; cores of it share one backend."""

    config: ModelConfig
    weights: ModelWeights
    num_blocks: int
    max_model_len: int
    max_num_seqs: int = 4
    chunk: int = 256
    speculation: Speculation = "none"
    batch_invariant: bool = False
    are_guesses_free: bool = False  # always some are verified
    num_stages: int = 1  # on so many GPUs, where there are so many
    num_host_blocks: int = 0
    adapters: AdapterRoom | None = None

    def __post_init__(self) -> None:
        drafts = draft_capacity(self._options(self.speculation), self.config)
        if self.are_guesses_free:
            most = drafts["step_cost"].max_rows
            drafts["step_cost"] = lambda num, num_drafts: np.where(
                num + num_drafts > most, np.inf, 1 + 0.01 * num_drafts
            )
        self.backend = CudaBackend(
            self.config,
            [*self._parts()],
            Capacity(self.num_blocks, BLOCK, self.max_model_len, **drafts),
            self.max_num_seqs,
            self.chunk,
            is_batch_invariant=self.batch_invariant,
            num_host_blocks=self.num_host_blocks,
            adapters=self.adapters,
        )

    def _parts(self) -> Iterator[ModelPart]:
        split = split_layers(self.config.num_hidden_layers, self.num_stages)
        for index, layers in enumerate(split):
            shape, device = part_of(self.config, layers), device_of(index)
            size = (layers_per_group(shape), self.num_blocks, BLOCK * 2 * shape.kv_size)
            cache = torch.zeros(size, dtype=torch.bfloat16, device=device)
            weights = part_of_weights(self.weights, layers, device)
            yield ModelPart(shape, weights, cache)

    def _options(self, speculation: Speculation) -> NativeConfig:
        return NativeConfig(
            Path(), "cuda", dtype="bfloat16", max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.chunk, speculation=speculation,
            batch_invariant=self.batch_invariant,
        )  # fmt: skip

    def core(
        self,
        *,
        is_overlapped: bool = True,
        is_cached: bool = True,
        speculation: Speculation | None = None,
    ) -> EngineCore:
        config = replace(
            self._options(speculation or self.speculation),
            overlap_steps=is_overlapped,
            enable_prefix_caching=is_cached,
        )
        window, size = self.config.sliding_window, self.config.vocab_size
        return assemble_core(config, self.backend, window, size)

    def prompts(self, seed: int, lengths: list[int]) -> list[list[int]]:
        generator = torch.Generator().manual_seed(seed)
        size = self.config.vocab_size
        return [torch.randint(0, size, (n,), generator=generator).tolist() for n in lengths]

    def share_greedy(self, prompt: list[int], answer: list[int]) -> float:
        """How much of an answer is, in float64, the likeliest token or as good as that.

        An expert chosen the other way moves a row by more: some rows may be, most may not.
        """
        known = torch.tensor(prompt[:-1], dtype=torch.long, device=DEVICE)
        asked = torch.tensor(prompt[-1:] + answer[:-1], device=DEVICE)
        empty = torch.zeros(
            (0, self.config.num_key_value_heads, self.config.head_dim),
            dtype=torch.float64,
            device=DEVICE,
        )
        past = [(empty, empty) for _ in self.config.layer_types]
        shape = Shape(self.config)
        for start in range(0, len(known), PIECE):
            forward_reference(shape, self.weights, known[start : start + PIECE], past)
        logits = forward_reference(shape, self.weights, asked, past).logits
        chosen = logits.gather(1, torch.tensor(answer, device=DEVICE)[:, None]).squeeze(1)
        return float((logits.amax(1) - chosen < MARGIN).double().mean())

    def log_probabilities(self, prompt: list[int]) -> torch.Tensor:
        """Of the token after each of the prompt's, in float64: (tokens, vocabulary)."""
        empty = torch.zeros(
            (0, self.config.num_key_value_heads, self.config.head_dim),
            dtype=torch.float64,
            device=DEVICE,
        )
        past = [(empty, empty) for _ in self.config.layer_types]
        known = torch.tensor(prompt, device=DEVICE)
        pieces = [
            forward_reference(Shape(self.config), self.weights, piece, past).logits
            for piece in known.split(PIECE)
        ]
        return torch.cat(pieces).log_softmax(1)


def device_of(stage: int) -> torch.device:
    """The GPU of a stage; the stages share what there is where there are fewer GPUs."""
    if DEVICE.type != "cuda":
        return DEVICE
    return torch.device("cuda", stage % torch.cuda.device_count())


def submit(core: EngineCore, name: str, prompt: list[int], params: SamplingParams) -> Sequence:
    return core.scheduler.add(EngineRequest(name, tuple(prompt), params))


def finish(core: EngineCore) -> list[tuple[Sequence, TokenEvent | EngineError]]:
    """Step to the end."""
    outcomes = []
    while core.has_work:
        outcomes += core.step()
    return outcomes


def generate(
    core: EngineCore, prompts: list[list[int]], num_tokens: int, **sampling: object
) -> tuple[list[list[int]], list[TokenEvent]]:
    """All at once; the answers and their events."""
    params = SamplingParams(max_tokens=num_tokens, **sampling)  # type: ignore[arg-type]
    sequences = [submit(core, str(i), prompt, params) for i, prompt in enumerate(prompts)]
    events = []
    for _, event in finish(core):
        assert isinstance(event, TokenEvent), event
        events.append(event)
    return [s.token_ids[s.num_prompt_tokens :] for s in sequences], events
