"""Steps as CUDA graphs: one of each shape of batch, captured when it first comes.

Launching a batch's kernels one by one takes the CPU longer than the GPU takes to run them.
A graph runs them all at one launch. Its inputs are copied to where it was captured from.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tools.nano.batches import Batch
from tools.nano.model import Nano

_MOST_MET = 8192  # the met ids are padded to a multiple of it
_MOST_WANTED = 4096  # and the predictions to one of this
_WARM_UPS = 2
_IGNORED = -100  # cross-entropy's own mark


@dataclass(slots=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    loss: Tensor
    grads: tuple[Tensor, ...]


class Captured:
    """Adds the gradients of batches to those of the model, by graphs."""

    def __init__(self, model: Nano) -> None:
        self._model = model
        self._parameters = list(model.parameters())
        for parameter in self._parameters:
            parameter.grad = torch.zeros_like(parameter)
        self._targets = model.target_of.cpu().numpy()
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: dict[tuple[int, ...], _Graph] = {}
        self.seconds = 0.0  # spent on capturing

    def __len__(self) -> int:
        return len(self._graphs)

    def add(self, batch: Batch, num_predicted: int) -> Tensor:
        """Add the gradients of a batch, and return its loss over `num_predicted`."""
        met = _padded(batch.met, _MOST_MET, 0)
        at = _padded(batch.at, _MOST_WANTED, 0)
        wanted = _padded(self._targets[batch.wanted], _MOST_WANTED, _IGNORED)
        share = np.full(1, 1 / num_predicted, np.float32)
        given = [torch.from_numpy(a).pin_memory() for a in (met, batch.index, at, wanted, share)]
        key = (*batch.index.shape, len(met), len(at))
        if key not in self._graphs:
            self._graphs[key] = self._capture(tuple(one.cuda() for one in given))
        graph = self._graphs[key]
        for place, one in zip(graph.inputs, given, strict=True):
            place.copy_(one, non_blocking=True)
        graph.graph.replay()
        own = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        torch._foreach_add_(own, list(graph.grads))
        return graph.loss

    def _capture(self, inputs: tuple[Tensor, ...]) -> _Graph:
        began = time.monotonic()
        self._model.positions(inputs[1].shape[1], inputs[1].device)  # copies from the CPU
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):  # compiles the layers
                self._gradients(inputs)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            loss, grads = self._gradients(inputs)
        self.seconds += time.monotonic() - began
        return _Graph(graph, inputs, loss, grads)

    def _gradients(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        met, index, at, wanted, share = inputs
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            hidden = self._model.hidden_of(met, index).flatten(0, 1)[at]
            loss = self._model.loss(hidden, wanted) * share[0]
        grads = torch.autograd.grad(loss, self._parameters)
        return loss.detach(), tuple(grad.detach() for grad in grads)


def _padded(array: NDArray[np.int64], step: int, filler: int) -> NDArray[np.int64]:
    return np.pad(array, (0, -len(array) % step), constant_values=filler)
