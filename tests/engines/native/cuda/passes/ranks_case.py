"""Ranks of tensor parallelism for tests: on GPUs as they are, else in threads that take turns.

Through Triton's interpreter a kernel cannot wait for another. So an exchange is launched twice,
each time without waiting: first only what it sends is kept, and once all ranks have sent, only what
it makes of what has come.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engines.native.assemble import assemble_core
from engines.native.backends.base import Capacity
from engines.native.backends.cuda.backend import CudaBackend
from engines.native.backends.cuda.graphs.staged import RankGraphs
from engines.native.backends.cuda.kernels import exchange
from engines.native.backends.cuda.kernels.launch import KernelLaunch, instead
from engines.native.backends.cuda.loading import LayerParts, RankParts, with_blocks
from engines.native.backends.cuda.ranks.exchange import Links
from engines.native.backends.cuda.steps.verify import draft_capacity
from engines.native.config import ModelConfig, NativeConfig
from engines.native.loop.core import EngineCore
from tests.engines.native.cuda.kernels.kernel_fixtures import DEVICE, IS_GPU

_PATIENCE_S = 600.0  # the interpreter is slow, and a machine may be busy
_EXCHANGES = (exchange.add_norm_of_ranks_kernel, exchange.meet_kernel)


def options(folder: Path, size: int, **given: Any) -> NativeConfig:
    values = {
        "max_num_seqs": 2,
        "max_num_batched_tokens": 8,
        "block_size": 16,
        "overlap_steps": True,
    }
    several = {"num_gpus": size, "tensor_parallel": size} if size > 1 else {}
    return NativeConfig(folder, "cuda", "bfloat16", **{**values, **several, **given})


def core_of(config: NativeConfig, num_blocks: int = 32, longest: int = 64) -> EngineCore:
    """A core over the checkpoint's weights, read as a start reads them."""
    model = ModelConfig.from_dir(config.model_dir)
    is_split = config.tensor_parallel > 1
    parts = RankParts(config, model) if is_split else LayerParts(config, model)
    devices = [_device(rank) for rank in range(len(parts.shapes))]
    shares = [
        with_blocks(shape, weights, num_blocks, config.block_size)
        for shape, weights in zip(parts.shapes, parts.weights(longest, devices), strict=True)
    ]
    backend = CudaBackend(
        model,
        shares,
        Capacity(num_blocks, config.block_size, longest, **draft_capacity(config, model)),
        config.max_num_seqs,
        config.max_num_batched_tokens,
        is_batch_invariant=config.batch_invariant,
        are_ranks=is_split,
    )
    return assemble_core(config, backend, model.sliding_window, model.vocab_size)


def _device(rank: int) -> torch.device:
    return torch.device("cuda", rank) if IS_GPU else DEVICE


@contextmanager
def at_once(size: int, monkeypatch: Any) -> Iterator[None]:
    """A block inside which the graphs of ranks run beside each other, whatever is there."""
    if IS_GPU:
        yield
        return
    turns = _Turns(size)
    with ThreadPoolExecutor(size) as threads:

        def run(graphs: RankGraphs, num: int, **_: bool) -> None:
            turns.barrier.reset()

            def on_rank(each: Any) -> None:
                with torch.inference_mode():
                    each.run(num)

            list(threads.map(on_rank, graphs._graphs))

        monkeypatch.setattr(RankGraphs, "run", run)
        monkeypatch.setattr(Links, "open", turns.opened(Links.open))
        with instead(turns.start):
            yield


class _Turns:
    """One launch at a time; exchanges in two halves, between which all ranks meet."""

    def __init__(self, size: int) -> None:
        self.barrier, self._lock = threading.Barrier(size), threading.Lock()
        self._buffers: Sequence[Tensor] = ()

    def opened(self, open_: Callable[[Links], None]) -> Callable[[Links], None]:
        def noted(links: Links) -> None:
            open_(links)
            for is_open in links._is_open:
                is_open.zero_()
            self._buffers = links._buffers

        return noted

    def start(self, launch: KernelLaunch) -> None:
        if launch.kernel not in _EXCHANGES or not self._buffers:
            with self._lock:
                launch.start()
            return
        rank = launch.options["RANK"]
        theirs = [each for i, each in enumerate(self._buffers) if i != rank]
        own = [arg for arg in launch.args if isinstance(arg, Tensor)]
        with self._lock, _unchanged([*own, self._buffers[rank]]):
            launch.start()
        self.barrier.wait(_PATIENCE_S)
        with self._lock, _unchanged(theirs):
            launch.start()
        self.barrier.wait(_PATIENCE_S)


@contextmanager
def _unchanged(tensors: Sequence[Tensor]) -> Iterator[None]:
    before = [each.clone() for each in tensors]
    yield
    for each, values in zip(tensors, before, strict=True):
        each.copy_(values)


def small(model: ModelConfig) -> ModelConfig:
    """The model with experts of as many MXFP4 blocks as there are ranks, at least."""
    return model if IS_GPU else replace(model, intermediate_size=64)
