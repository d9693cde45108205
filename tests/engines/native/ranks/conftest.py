"""Ranks of one model in threads of this process, over the connections that processes have."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch

from engines.base import SamplingParams
from engines.native.backends.base import SlotStart
from engines.native.backends.cpu.backend import TorchModel
from engines.native.backends.cpu.exchange import First, Other, RankExchange
from engines.native.config import ModelConfig, NativeConfig
from engines.native.host.slots import Logits, Slot, Span
from tests.engines.native.small_model import small_config, write_small

T = TypeVar("T")

VOCAB_SIZE = 130  # 4 ranks do not share it out evenly
SHAPE = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 160,  # five MXFP4 blocks
    "num_hidden_layers": 2,
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@contextmanager
def exchanges(size: int) -> Iterator[list[RankExchange]]:
    """One for each rank, the first one first."""
    with ExitStack() as stack:
        pairs = [socket.socketpair() for _ in range(1, size)]
        ends = [[Connection(each.detach()) for each in pair] for pair in pairs]
        for pair in ends:
            for end in pair:
                stack.callback(end.close)
        others = [Other(rank, size, pair[1]) for rank, pair in enumerate(ends, 1)]
        yield [First([pair[0] for pair in ends], lambda _: "has ended"), *others]


def on_all(ranks: Sequence[RankExchange], work: Callable[[RankExchange], T]) -> list[T]:
    """Do this on all ranks at once; what each brings."""
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(work, ranks))


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("ranks"), small_config(VOCAB_SIZE) | SHAPE)


def config_of(folder: Path, size: int, by_expert: bool = False, **options: Any) -> NativeConfig:
    given = {"num_kv_blocks": 60, "max_num_seqs": 4, "num_threads": 1, **options}
    return NativeConfig(
        folder, tensor_parallel=size, expert_parallel=size if by_expert else 1, **given
    )


def logits_of(config: NativeConfig, chunks: Sequence[Sequence[int]]) -> torch.Tensor:
    """After the last token of each chunk of one sequence, by all ranks together."""
    model = ModelConfig.from_dir(config.model_dir)

    def walk(exchange: RankExchange) -> list[Logits]:
        torch.set_num_threads(1)
        network = TorchModel(config, model, exchange)
        tokens = tuple(token for chunk in chunks for token in chunk)
        blocks = tuple(range(1, 1 + -(-len(tokens) // config.block_size)))
        window = tuple(len(blocks) + block for block in blocks)
        start = SlotStart(0, tokens, len(tokens), blocks, window, SamplingParams(1), 0)
        slot, rows, at = Slot(start), [], 0
        for chunk in chunks:
            rows.append(network.forward([Span(slot, at, at + len(chunk), is_last=True)]))
            at += len(chunk)
        return rows

    with exchanges(config.tensor_parallel) as ranks:
        first, *_ = on_all(ranks, walk)
    return torch.cat([each.spread() for each in first])
