"""KV blocks in host memory on this machine's GPU: copies, agents that do not fit, and their bits.

    python -m tools.benchmarks.gpu_host_kv [--agents 16] [--context 40000] [--kv fp8] [--store DIR]

gpt-oss-20b with random weights. `pinning`: how long pinning takes. `copies`: GB/s out and in, of
places in a row and of scattered ones. `depths`: what copying a prefix takes and what computing it
takes, measured through the engine. `agents`: agents of --context tokens that ask --turns times,
with a pool for --fit of them: with host memory for all, without, and for half. In the last run
every cached block is summed when it is computed and again at the end, wherever it is by then.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from engines.base import EngineRequest, SamplingParams, TokenEvent
from engines.native.assemble import assemble_core
from engines.native.backends.base import Capacity, HostCapacity, Move
from engines.native.backends.cuda.artefact.kept import Artefact
from engines.native.backends.cuda.backend import CudaBackend
from engines.native.backends.cuda.card import Card
from engines.native.backends.cuda.loading import with_blocks
from engines.native.backends.cuda.offline.published import gpt_oss
from engines.native.calibration import calibrate
from engines.native.config import NativeConfig
from engines.native.kv_pool import cache_dtype
from engines.native.loop.block_manager import BlockManager
from engines.native.loop.core import EngineCore
from engines.native.loop.sequence import Sequence
from engines.native.loop.step_costs import StepCosts
from parts.host_kv.tier import HostTier
from tools.benchmarks.random_model import random_weights

_BLOCK: Final = 64
_LONGEST: Final = 131_072
_NEW, _ANSWER = 1_500, 150  # tokens of a turn
_DEPTHS: Final = (512, 2_048, 8_192, 20_032, 40_000, 100_032)
_COPIED: Final = 1_024  # blocks


class Bench:
    """One backend; cores of it begin with nothing cached."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.model, device = gpt_oss("20b"), torch.device("cuda", 0)
        blocks_of_one = arguments.context // _BLOCK + 3 * arguments.turns
        self.num_blocks = int(arguments.fit * blocks_of_one) + 8_192 // _BLOCK + 64
        self.num_host_blocks = int((arguments.agents + 1) * blocks_of_one)
        self.config = NativeConfig(
            Path(), "cuda", "bfloat16", max_model_len=_LONGEST, max_num_seqs=512,
            max_num_batched_tokens=8192, block_size=_BLOCK, overlap_steps=True,
            max_token_gap_ms=arguments.gap_ms, artefact_dir=arguments.store,
            kv_dtype="fp8" if arguments.kv == "fp8" else None,
        )  # fmt: skip
        weights = random_weights(self.model, _LONGEST, device)
        torch.cuda.empty_cache()
        dtype = cache_dtype(self.config)
        part = with_blocks(self.model, weights, self.num_blocks, _BLOCK, dtype)
        self.cache = part.cache
        longest = (self.num_blocks - 200) * _BLOCK
        capacity = Capacity(self.num_blocks, _BLOCK, min(_LONGEST, longest))
        began_s = time.perf_counter()
        with Artefact(self.config, self.model).kernels(Card.of(device).capability):
            self.backend = CudaBackend(
                self.model, [part], capacity, 512, 8192, num_host_blocks=self.num_host_blocks
            )
        self.built_s = time.perf_counter() - began_s
        host = self.backend.capacity.host
        assert host is not None
        self.host = host
        self.ready_s = time.perf_counter()
        self.while_pinning = self.calibrated()

    def calibrated(self) -> StepCosts:
        """What steps take now."""
        limits = self.core(0).scheduler.limits
        self.costs = calibrate(self.backend, limits, self.model.vocab_size, 2.0)
        return self.costs

    def core(self, num_host_blocks: int) -> EngineCore:
        """With room for so many blocks on the host."""
        host = replace(self.host, num_blocks=num_host_blocks) if num_host_blocks else None
        self.backend._capacity = replace(self.backend.capacity, host=host)
        core = assemble_core(
            self.config, self.backend, self.model.sliding_window, self.model.vocab_size
        )
        if hasattr(self, "costs"):
            core.scheduler.costs = StepCosts.from_dict(self.costs.as_dict())
        return core


def tier_of(core: EngineCore) -> HostTier | None:
    return next((each for each in core.options if isinstance(each, HostTier)), None)


class Sums:
    """Sums of each cached block's bits, taken when it is computed and compared at the end.

    A block of an answer is decoded first, and computed as part of a prompt if it was evicted since:
    its bits may be those of either.
    """

    def __init__(self, bench: Bench, core: EngineCore) -> None:
        blocks = core.scheduler.blocks
        self._bench, self._blocks, self._tier = bench, blocks, tier_of(core)
        self._words = bench.cache.view(torch.int64)
        self._new: list[tuple[bytes, int]] = []
        self._found: dict[bytes, list[Tensor]] = {}
        offer = blocks.pool.offer

        def offer_noted(key: bytes, block: int) -> None:
            is_new = key not in blocks.pool.cached
            offer(key, block)
            if is_new:
                self._new.append((key, block))

        blocks.pool.offer = offer_noted  # type: ignore[method-assign]

    def take(self) -> None:
        """Sum what was offered since, before another step can be given these blocks."""
        new, self._new = self._new, []
        for first in range(0, len(new), 256):
            piece = new[first : first + 256]
            sums = self._of([block for _, block in piece])
            for i, (key, _) in enumerate(piece):
                self._found.setdefault(key, []).append(sums[i])

    def compare(self) -> dict[str, int]:
        """How many blocks there are, on the device and the host, and how many are others."""
        torch.cuda.synchronize()
        wrong = {"device": 0, "host": 0}
        cached = [
            (key, block) for key, block in self._blocks.pool.cached.items() if key in self._found
        ]
        for first in range(0, len(cached), 256):
            piece = cached[first : first + 256]
            sums = self._of([block for _, block in piece]).tolist()
            wrong["device"] += sum(
                not self._is_found(key, value) for (key, _), value in zip(piece, sums, strict=True)
            )
        tier, store = self._tier, self._bench.backend._hosts[0]
        assert tier is not None
        for key, place in tier._places.items():
            value = int(store._places.rows(place, 1).sum())
            wrong["host"] += not self._is_found(key, value)
        return {
            "on_device": len(cached), "wrong_on_device": wrong["device"],
            "on_host": tier.num_used, "wrong_on_host": wrong["host"],
        }  # fmt: skip

    def _is_found(self, key: bytes, value: int) -> bool:
        return value in (int(each) for each in self._found[key])

    def _of(self, blocks: list[int]) -> Tensor:
        index = torch.tensor(blocks, device=self._words.device)
        return self._words.index_select(1, index).sum((0, 2))


def tokens(seed: int, num: int) -> list[int]:
    """So many that nobody else has."""
    return random.Random(seed).choices(range(1000, 200_000), k=num)


def pinning(bench: Bench) -> dict[str, Any]:
    """How long the thread takes for all pieces, beside the measuring of steps."""
    pinned = bench.backend._hosts[0]._places._pinning
    assert pinned is not None
    before = pinned._num_pinned
    pinned.wait_for(len(pinned._pieces) - 1)
    seconds = time.perf_counter() - bench.ready_s
    size = sum(piece.nbytes for piece in pinned._pieces)
    return {
        "gb": round(size / 1e9, 2), "pieces": len(pinned._pieces), "pieces_before": before,
        "pinned": pinned._num_pinned, "seconds": round(seconds, 2),
    }  # fmt: skip


def copies(bench: Bench) -> dict[str, Any]:
    """GB/s between the device and the host."""
    store, found = bench.backend._hosts[0], dict[str, Any]()
    num = min(_COPIED, bench.num_blocks - 1, bench.num_host_blocks)
    places = [*range(bench.num_host_blocks)]
    for order in ("in a row", "scattered"):
        if order == "scattered":
            random.Random(1).shuffle(places)
        for is_save in (True, False):
            moves = [Move(1 + i, place, is_save) for i, place in enumerate(places[:num])]
            torch.cuda.synchronize()
            begun_s = time.perf_counter()
            store.move(moves, is_needed=True)
            enqueued_s = time.perf_counter() - begun_s
            torch.cuda.synchronize()
            seconds = time.perf_counter() - begun_s
            found[f"{'out' if is_save else 'in'}, {order}"] = {
                "gb_per_s": round(num * bench.host.block_bytes / seconds / 1e9, 1),
                "enqueued_ms": round(enqueued_s * 1e3, 1), "ms": round(seconds * 1e3, 1),
            }  # fmt: skip
    return found


def answer(core: EngineCore, prompt: list[int], num: int = 1) -> tuple[float, int]:
    """Seconds until the first token of a request alone, and how much of it was found."""
    begun_s, first_s = time.perf_counter(), 0.0
    sequence = core.scheduler.add(EngineRequest("a", tuple(prompt), SamplingParams(num)))
    while core.has_work:
        for _, event in core.step():
            assert isinstance(event, TokenEvent), event
            first_s = first_s or time.perf_counter() - begun_s
    return first_s, sequence.num_cached_tokens


def evict(blocks: BlockManager) -> None:
    """Send everything that is cached and unused to the host."""
    pool = blocks.pool
    spare, pool._spare = pool._spare, OrderedDict()
    taken = [blocks._take() for _ in range(len(pool._free))]
    for block in taken:
        pool._ref_counts[block] = 0
        spare[block] = None
    pool._spare = spare


def depths(bench: Bench) -> list[dict[str, Any]]:
    """One request alone: its prefix computed, copied from the host, and found on the device."""
    found = []
    core = bench.core(bench.num_host_blocks)
    blocks, host = core.scheduler.blocks, tier_of(core)
    assert host is not None
    answer(core, tokens(9, 2_000))
    for depth in _DEPTHS:
        if depth + 200 > core.scheduler.limits.max_model_len:
            continue
        prefix = tokens(depth, depth)
        computed_s, _ = answer(core, [*prefix, *tokens(1, 32)])
        evict(blocks)
        answer(core, tokens(depth + 1, 64))
        copied_s, num_copied = answer(core, [*prefix, *tokens(2, 32)])
        here_s, num_here = answer(core, [*prefix, *tokens(3, 32)])
        most = core.scheduler.limits.max_num_batched_tokens
        found.append(
            {
                "prefix": depth, "found": [num_copied, num_here],
                "computed_ms": round(computed_s * 1e3, 1), "copied_ms": round(copied_s * 1e3, 1),
                "on_device_ms": round(here_s * 1e3, 1),
                "model_computed_ms": round(bench.costs.prompt_seconds(0, depth, most) * 1e3, 1),
                "model_copied_ms": round(depth // _BLOCK * bench.host.load_s * 1e3, 1),
            }
        )  # fmt: skip
    blocks.check_integrity()
    return found


class Agents:
    """Agents whose contexts grow; each asks again when it was answered."""

    def __init__(self, bench: Bench, core: EngineCore, arguments: argparse.Namespace) -> None:
        self._core, self._turns = core, arguments.turns
        self._contexts = [tokens(n, arguments.context) for n in range(arguments.agents)]
        self._asked: dict[Sequence, tuple[int, int, float]] = {}
        self.ttft_s: list[list[float]] = [[] for _ in range(arguments.turns)]
        self.gaps_s: list[float] = []
        self._last_s: dict[Sequence, float] = {}
        self.cached = self.prompt = 0

    def run(self, sums: Sums | None, limit_s: float) -> float:
        """Seconds until all is answered."""
        begun_s = time.perf_counter()
        for number in range(len(self._contexts)):
            self._ask(number, 0)
        while self._core.has_work and time.perf_counter() - begun_s < limit_s:
            for sequence, event in self._core.step():
                assert isinstance(event, TokenEvent), event
                self._take(sequence, event)
            if sums is not None:
                sums.take()
        return time.perf_counter() - begun_s

    def _ask(self, number: int, turn: int) -> None:
        self._contexts[number] += tokens(1_000 * (number + 1) + turn, _NEW)
        sampling = SamplingParams(_ANSWER, temperature=1.0, seed=number)
        request = EngineRequest(f"{number}-{turn}", tuple(self._contexts[number]), sampling)
        sequence = self._core.scheduler.add(request)
        self._asked[sequence] = number, turn, time.perf_counter()

    def _take(self, sequence: Sequence, event: TokenEvent) -> None:
        number, turn, asked_s = self._asked[sequence]
        now_s = time.perf_counter()
        if sequence in self._last_s:
            self.gaps_s.append(now_s - self._last_s[sequence])
        else:
            self.ttft_s[turn].append(now_s - asked_s)
            if turn:
                self.cached += event.num_cached_tokens
                self.prompt += sequence.num_prompt_tokens
        self._last_s[sequence] = now_s
        if event.finish_reason is not None:
            del self._asked[sequence], self._last_s[sequence]
            self._contexts[number] = [*sequence.token_ids]
            if turn + 1 < self._turns:
                self._ask(number, turn + 1)


def agents(
    bench: Bench, arguments: argparse.Namespace, share: float, limit_s: float, *, is_summed: bool
) -> dict[str, Any]:
    """`share` of the blocks of all agents have a place on the host."""
    core = bench.core(int(share * bench.num_host_blocks))
    sums = Sums(bench, core) if is_summed else None
    load = Agents(bench, core, arguments)
    seconds = load.run(sums, limit_s)
    stats = core.stats()
    later = sorted(each for turn in load.ttft_s[1:] for each in turn)
    gaps = sorted(load.gaps_s)
    host_bytes = stats.num_host_kv_blocks * bench.host.block_bytes
    found: dict[str, Any] = {
        "host_share": share, "host_gb": round(host_bytes / 1e9, 1),
        "seconds": round(seconds, 2), "is_whole": not core.has_work,
        "answered": sum(map(len, load.ttft_s)),
        "later_ttft_p50_ms": round(later[len(later) // 2] * 1e3) if later else None,
        "later_ttft_p99_ms": round(later[int(0.99 * len(later))] * 1e3) if later else None,
        "gap_p99_ms": round(gaps[int(0.99 * len(gaps))] * 1e3, 1),
        "gap_max_ms": round(gaps[-1] * 1e3, 1),
        "later_cached": round(load.cached / max(load.prompt, 1), 3),
        "preemptions": stats.num_preemptions, "host_hits": stats.host_cache_hits,
        "gb_out": round(stats.host_bytes_saved / 1e9, 1),
        "gb_in": round(stats.host_bytes_loaded / 1e9, 1),
    }  # fmt: skip
    if sums is not None:
        found["bits"] = sums.compare()
    for sequence in [*load._asked]:
        core.scheduler.remove(sequence)
    core.abandon()
    core.scheduler.blocks.check_integrity()
    return found


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=16)
    parser.add_argument("--context", type=int, default=40_000)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--fit", type=float, default=7.4, help="agents whose blocks the GPU holds")
    parser.add_argument("--kv", choices=["bf16", "fp8"], default="bf16", help="type of the cache")
    parser.add_argument("--gap-ms", type=float, default=None)
    parser.add_argument("--limit-s", type=float, default=40.0, help="of a run of the agents")
    parser.add_argument("--store", type=Path, help="compiled kernels: backends/cuda/offline")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> None:
    """Run all parts; the JSON is written after each."""
    arguments, begun_s = parsed(), time.perf_counter()
    line: dict[str, Any] = {"gpu": torch.cuda.get_device_name(0), "torch": torch.__version__}

    def tell(name: str, value: object) -> None:
        line[name] = value
        print(f"[{time.perf_counter() - begun_s:.1f} s] {name}", json.dumps(value), flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(line, indent=1) + "\n")

    with torch.inference_mode():
        bench = Bench(arguments)
        host: HostCapacity = bench.host
        tell("built_s", round(bench.built_s, 1))
        tell("load_ms_of_a_block", round(host.load_s * 1e3, 4))
        tell("blocks", {"device": bench.num_blocks, "host": bench.num_host_blocks})
        tell("pinning", pinning(bench))
        tell("costs_while_pinning", bench.while_pinning.as_dict())
        tell("costs", bench.calibrated().as_dict())
        tell("copies", copies(bench))
        tell("depths", depths(bench))
        runs = []
        for share, is_summed in ((1.0, False), (0.0, False), (0.5, True)):
            runs.append(agents(bench, arguments, share, arguments.limit_s, is_summed=is_summed))
            tell("agents", runs)


if __name__ == "__main__":
    main()
