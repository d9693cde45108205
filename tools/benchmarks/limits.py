"""Physical limits: the fewest bytes over the memory's bandwidth, the arithmetic over its rate."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open


def read_bandwidth_bytes_s() -> float:
    """Measure the memory read bandwidth of this machine: the median of seven sums of 1 GiB."""
    data = torch.ones(2**28, dtype=torch.float32)
    data.sum()
    times = []
    for _ in range(7):
        started = time.perf_counter()
        data.sum()
        times.append(time.perf_counter() - started)
    return data.nbytes / statistics.median(times)


def flops_s(dtype: torch.dtype) -> float:
    """Measure products on the threads there are: the best of seven of 1,024 cubed.

    In `dtype` or float32, whichever is faster: many CPUs have no arithmetic for bfloat16.
    """
    return max(_flops_s(each) for each in {dtype, torch.float32})


def _flops_s(dtype: torch.dtype) -> float:
    one = torch.ones(1024, 1024, dtype=dtype)
    one @ one
    times = []
    for _ in range(7):
        started = time.perf_counter()
        one @ one
        times.append(time.perf_counter() - started)
    return 2 * 1024**3 / min(times)


@dataclass(frozen=True, slots=True)
class Machine:
    """What this machine can do at most, as measured."""

    read_bytes_s: float
    flops_s: float

    @classmethod
    def measured(cls, dtype: torch.dtype) -> Machine:
        """Takes some seconds and 1 GiB."""
        return cls(read_bandwidth_bytes_s(), flops_s(dtype))

    def seconds(self, num_bytes: float, num_flops: float) -> float:
        """The least time for both, one beside the other."""
        return max(num_bytes / self.read_bytes_s, num_flops / self.flops_s)


@dataclass(frozen=True, slots=True)
class ModelBytes:
    """What one decode step reads of a checkpoint held as `itemsize` bytes a number."""

    num_layers: int
    num_experts: int
    experts_per_token: int
    attention_bytes: int  # all layers: projections, router, norms
    expert_bytes: int  # one expert of one layer
    unembedding_bytes: int  # distinct rows only: a row that repeats need not be read twice
    itemsize: int

    @classmethod
    def of(cls, checkpoint: Path, itemsize: int) -> ModelBytes:
        """Read the shapes of a one-file checkpoint whose experts are not quantised."""
        config = json.loads((checkpoint / "config.json").read_text())
        attention = expert = 0
        with safe_open(checkpoint / "model.safetensors", "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a mapping
                num = torch.Size(tensors.get_slice(name).get_shape()).numel()
                if ".experts." in name:
                    expert += num
                elif name.startswith("model.layers."):
                    attention += num
            unembedding = _num_distinct(tensors.get_tensor("lm_head.weight"))
        num_layers = config["num_hidden_layers"]
        num_experts = config["num_local_experts"]
        return cls(
            num_layers=num_layers,
            num_experts=num_experts,
            experts_per_token=config["num_experts_per_tok"],
            attention_bytes=attention * itemsize,
            expert_bytes=expert * itemsize // (num_layers * num_experts),
            unembedding_bytes=unembedding * config["hidden_size"] * itemsize,
            itemsize=itemsize,
        )

    def step_bytes(self, batch: int) -> float:
        """The bytes of a step over `batch` sequences, experts routed uniformly, KV left out."""
        share = self.experts_per_token / self.num_experts
        experts = self.num_experts * (1 - (1 - share) ** batch)
        return (
            self.attention_bytes
            + self.num_layers * experts * self.expert_bytes
            + self.unembedding_bytes
        )

    def token_flops(self) -> float:
        """Multiplications and additions of a token in the layers, attention's scores left out."""
        experts = self.num_layers * self.experts_per_token * self.expert_bytes
        return 2 * (self.attention_bytes + experts) / self.itemsize

    def logits_flops(self) -> float:
        """Those of one row of logits."""
        return 2 * self.unembedding_bytes / self.itemsize


def _num_distinct(rows: torch.Tensor) -> int:
    repeated = (rows == rows[-1]).all(dim=1).sum().item()
    return rows.shape[0] - int(repeated) + 1
