"""Random weights of a model's true shape, made on the device: for benchmarks and tests."""

from __future__ import annotations

import torch
from torch import Tensor

from engines.native.backends.cpu.layers import RotaryEmbedding
from engines.native.backends.cuda.fragment_order import RAISED
from engines.native.backends.cuda.shape import Shape
from engines.native.backends.cuda.weights import LayerWeights, ModelWeights, PackedExperts
from engines.native.config import LayerType, ModelConfig, RopeConfig

_SIZES = {"20b": (24, 32), "120b": (36, 128)}  # layers, experts


def gpt_oss(model: str, num_layers: int | None = None) -> ModelConfig:
    """The published shape of gpt-oss-20b or -120b, of fewer layers if wanted."""
    layers, experts = _SIZES[model]
    layers = num_layers or layers
    kinds: list[LayerType] = ["sliding_attention", "full_attention"]
    return ModelConfig(
        hidden_size=2880,
        num_hidden_layers=layers,
        num_attention_heads=64,
        num_key_value_heads=8,
        head_dim=64,
        intermediate_size=2880,
        num_local_experts=experts,
        num_experts_per_tok=4,
        sliding_window=128,
        layer_types=tuple(kinds[i % 2] for i in range(layers)),
        vocab_size=201088,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        swiglu_limit=7.0,
        swiglu_alpha=1.702,
        attention_bias=True,
        tie_word_embeddings=False,
        rope=RopeConfig(150000.0, 32.0, 4096, 32.0, 1.0, False, None),
    )


def random_weights(
    config: ModelConfig, num_positions: int, device: torch.device, seed: int = 0
) -> ModelWeights:
    """Weights that keep activations bounded: bf16 normal ones and MXFP4 of random codes."""
    make = _Maker(config, device, seed)
    vocabulary = (config.vocab_size, config.hidden_size)
    cosines, sines = rotation_tables(config, num_positions, device)
    return ModelWeights(
        embedding=make.normal(*vocabulary, scale=1.0),
        layers=[make.layer() for _ in range(config.num_hidden_layers)],
        norm=make.normal(config.hidden_size, scale=0.1, mean=1.0),
        head=make.normal(*vocabulary, scale=0.02),
        cosines=cosines,
        sines=sines,
    )


def rotation_tables(
    config: ModelConfig, num_positions: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """cos and sin of each position and pair, times YaRN's attention factor."""
    rotations = RotaryEmbedding(config.rope, config.head_dim, torch.device("cpu"))(
        torch.arange(num_positions)
    )
    return (
        rotations.real.float().contiguous().to(device),
        rotations.imag.float().contiguous().to(device),
    )


class _Maker:
    def __init__(self, config: ModelConfig, device: torch.device, seed: int) -> None:
        self._config, self._device = config, device
        self._shape = Shape(config)
        self._generator = torch.Generator(device).manual_seed(seed)

    def normal(self, *shape: int, scale: float, mean: float = 0.0) -> Tensor:
        values = torch.empty(shape, dtype=torch.bfloat16, device=self._device)
        return values.normal_(mean, scale, generator=self._generator)

    def layer(self) -> LayerWeights:
        c, shape = self._config, self._shape
        return LayerWeights(
            attention_norm=self.normal(c.hidden_size, scale=0.1, mean=1.0),
            qkv=self.normal(shape.qkv_size, c.hidden_size, scale=0.02),
            qkv_bias=self.normal(shape.qkv_size, scale=0.1),
            sinks=self.normal(c.num_attention_heads, scale=1.0),
            out=self.normal(c.hidden_size, c.q_size, scale=0.02),
            out_bias=self.normal(c.hidden_size, scale=0.1),
            moe_norm=self.normal(c.hidden_size, scale=0.1, mean=1.0),
            router=self.normal(c.num_local_experts, c.hidden_size, scale=c.hidden_size**-0.5),
            router_bias=self.normal(c.num_local_experts, scale=0.1),
            gate_up=self._experts(2 * c.intermediate_size, shape.hidden_stride),
            down=self._experts(c.hidden_size, shape.inner_stride),
        )

    def _experts(self, rows: int, inputs: int) -> PackedExperts:
        """Every word is a valid set of codes, so random words are random weights."""
        c = self._config
        words = torch.empty(
            (c.num_local_experts, rows // 16, 2 * inputs), dtype=torch.int32, device=self._device
        ).random_(-(2**31), 2**31 - 1, generator=self._generator)
        scales = torch.empty(
            (*words.shape[:2], 4 * (inputs // 6)), dtype=torch.uint8, device=self._device
        ).random_(117 + RAISED, 122 + RAISED, generator=self._generator)
        bias = self.normal(c.num_local_experts, rows, scale=0.1)
        return PackedExperts(words, scales.view(torch.int32), bias)
