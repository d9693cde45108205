"""Sums of tensors over this machine's GPUs in CUDA graphs: our kernels', NCCL's and torch's.

    python -m tools.benchmarks.gpu_sum [--rows 1 8 32 128] [--json FILE]

A row is one token's residual stream in bf16: 5,760 bytes. One process drives all GPUs for our
kernels, as the engine does: one in CUDA (gpu_sum.cu, built by nvcc) and the engine's own, whose
parts are float32. NCCL and torch's one-shot sum have a process for each GPU. The floor is an empty
kernel of a graph and one way over the link. All results are checked.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from engines.native.backends.cuda.ranks.exchange import Links

HIDDEN: Final = 2880
SUM, FUSED, ENGINE = "sum", "sum, residual and norm", "the engine's sum, residual and norm"
_WORDS: Final = HIDDEN * 2 // 16  # of a row, as the kernel reads it
_CALLS: Final = 100  # in a graph
_REPLAYS: Final = 25
_EMPTY: Final = 0x80008000 - (1 << 32)  # two bf16 of -0.0
_ROUNDS: Final = 2000
_SOURCE: Final = Path(__file__).with_suffix(".cu")
_PEERS_S: Final = 120


def built(folder: Path) -> ctypes.CDLL:
    """The kernels; raises RuntimeError where two of the GPUs cannot reach each other."""
    library = folder / "sum.so"
    options = ["-O3", "-arch=sm_90", "--shared", "-cudart", "shared", "-Xcompiler", "-fPIC"]
    subprocess.run(["nvcc", *options, "-o", str(library), str(_SOURCE)], check=True)
    found = ctypes.CDLL(str(library))
    pointer, number = ctypes.c_void_p, ctypes.c_int
    four = [pointer] * 4
    found.sum.argtypes = [pointer, number, number, pointer, pointer, number, number, pointer]
    found.sum.argtypes += [number, pointer]
    found.fused.argtypes = [pointer, number, number, *four, number, number, number, pointer]
    found.fused.argtypes += [pointer]
    found.nothing.argtypes = [pointer]
    found.ping.argtypes = [pointer, pointer, number, number, ctypes.c_uint, pointer]
    for device in range(torch.cuda.device_count()):
        for peer in range(torch.cuda.device_count()):
            if device != peer and found.reach(device, peer):
                raise RuntimeError(f"GPU {device} cannot reach the memory of GPU {peer}")
    return found


class Ranks:
    """All GPUs, driven by this process."""

    def __init__(self, library: ctypes.CDLL, most_rows: int) -> None:
        self.library, self._most = library, most_rows * _WORDS
        self.devices = [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
        self.streams = [torch.cuda.Stream(device) for device in self.devices]

    def on_each(self, work: Callable[[int], None]) -> None:
        """Enqueue work on each GPU's stream, the first one last: its time is taken."""
        for rank in reversed(range(len(self.devices))):
            with torch.cuda.device(self.devices[rank]), torch.cuda.stream(self.streams[rank]):
                work(rank)

    def wait(self) -> None:
        for device in self.devices:
            torch.cuda.synchronize(device)

    def floors(self) -> dict[str, float]:
        graph = self._captured(lambda _: self.library.nothing(_stream()), 0)
        empty = timed(self.streams[0], graph.replay, self.wait) / _CALLS
        words = [torch.zeros(1, dtype=torch.int32, device=each) for each in self.devices[:2]]
        self.wait()
        ways = []
        for turn in range(5):
            events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            for rank in (1, 0):
                with torch.cuda.device(rank), torch.cuda.stream(self.streams[rank]):
                    ends = words[rank].data_ptr(), words[1 - rank].data_ptr()
                    if rank == 0:
                        events[0].record()
                    self.library.ping(*ends, rank == 0, _ROUNDS, turn * _ROUNDS, _stream())
                    if rank == 0:
                        events[1].record()
            self.wait()
            ways.append(1e3 * events[0].elapsed_time(events[1]) / _ROUNDS / 2)
        return {"empty_kernel_us": round(empty, 2), "one_way_us": round(min(ways), 2)}

    def measured(self, rows: int, kind: str) -> float:
        """The time of one call in microseconds, its results checked before and after."""
        parts = [torch.randn(rows, HIDDEN, device=each).bfloat16() for each in self.devices]
        parts[0][0, :4] = -0.0
        expected = sum((part.cpu().float() for part in parts), torch.zeros(rows, HIDDEN))
        outs = [torch.zeros_like(part) for part in parts]
        residuals = [torch.zeros_like(part, dtype=torch.float32) for part in parts]
        gains = [torch.ones(HIDDEN, dtype=torch.bfloat16, device=each) for each in self.devices]
        if kind == ENGINE:
            call, open_ = self._call_of_engine(rows, parts, outs, residuals, gains)
        else:
            call, open_ = self._call(kind, rows, parts, outs, residuals, gains), self.wait
        self.on_each(call)
        self.wait()
        num_before = 0 if kind == ENGINE else 1  # the engine's ranks do not wait yet
        if num_before:
            self._check(kind, outs, expected, num_calls=1)
        graphs = [self._captured(call, rank) for rank in range(len(self.devices))]
        open_()
        others = graphs[1:]

        def replay() -> None:
            graphs[0].replay()

        def before() -> None:
            self.wait()
            for rank, graph in enumerate(others, 1):
                with torch.cuda.device(self.devices[rank]), torch.cuda.stream(self.streams[rank]):
                    graph.replay()

        time_us = timed(self.streams[0], replay, before) / _CALLS
        self.wait()
        self._check(kind, outs, expected, num_calls=num_before + _CALLS * _REPLAYS)
        return round(time_us, 2)

    def _call(
        self,
        kind: str,
        rows: int,
        parts: Sequence[Tensor],
        outs: Sequence[Tensor],
        residuals: Sequence[Tensor],
        gains: Sequence[Tensor],
    ) -> Callable[[int], None]:
        size = len(self.devices)
        places = 3 * size * self._most * 4
        buffers = [
            torch.full((places,), _EMPTY, dtype=torch.int32, device=each) for each in self.devices
        ]
        counts = [torch.zeros(2, dtype=torch.int32, device=each) for each in self.devices]
        self.wait()
        table = (ctypes.c_void_p * size)(*(each.data_ptr() for each in buffers))

        def call(rank: int) -> None:
            part, out, count = (each[rank].data_ptr() for each in (parts, outs, counts))
            if kind == SUM:
                given = part, out, rows * _WORDS, self._most, count, 128
                error = self.library.sum(table, size, rank, *given, _stream())
            else:
                own = part, residuals[rank].data_ptr(), gains[rank].data_ptr(), out
                shape = rows, _WORDS, self._most, count
                error = self.library.fused(table, size, rank, *own, *shape, _stream())
            if error:
                raise RuntimeError(f"the launch failed: CUDA error {error}")

        self._kept = buffers  # the kernel has their addresses only
        return call

    def _call_of_engine(
        self,
        rows: int,
        parts: Sequence[Tensor],
        outs: Sequence[Tensor],
        residuals: Sequence[Tensor],
        gains: Sequence[Tensor],
    ) -> tuple[Callable[[int], None], Callable[[], None]]:
        """A call, and what has the ranks wait for each other once all graphs are captured."""
        links = Links(self.devices, HIDDEN, rows)
        floats = [part.float() for part in parts]
        ones = [torch.ones(rows, device=each) for each in self.devices]
        self.wait()

        def call(rank: int) -> None:
            side, out = links.sides[rank], outs[rank]
            given = residuals[rank], floats[rank], ones[rank], gains[rank], out, out
            side.add_norm(*given, rows=rows, top_k=1, eps=1e-5)
            if not torch.cuda.is_current_stream_capturing():
                side.finish()  # the graph begins with the first of both turns

        def open_() -> None:
            for residual in residuals:
                residual.zero_()
            links.open()

        return call, open_

    def _check(self, kind: str, outs: Sequence[Tensor], sums: Tensor, num_calls: int) -> None:
        first, *others = (out.cpu() for out in outs)
        if any(not torch.equal(first, other) for other in others):
            raise RuntimeError(f"{kind}: the GPUs have different results")
        if kind == SUM:
            is_right = torch.equal(first, sums.bfloat16())
        else:
            rows = num_calls * sums
            normed = rows * torch.rsqrt(rows.square().mean(1, keepdim=True) + 1e-5)
            is_right = bool((first.float() - normed).abs().max() < 0.04)
        if not is_right:
            raise RuntimeError(f"{kind}: the result is wrong")

    def _captured(self, call: Callable[[int], Any], rank: int) -> torch.cuda.CUDAGraph:
        graph, stream = torch.cuda.CUDAGraph(), self.streams[rank]
        with (
            torch.cuda.device(self.devices[rank]),
            torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"),
        ):
            for _ in range(_CALLS):
                call(rank)
        return graph


def timed(stream: torch.cuda.Stream, work: Callable[[], None], before: Callable[[], None]) -> float:
    """The middle of some runs in microseconds; `before` each of them is not counted."""
    found: list[float] = []
    for _ in range(_REPLAYS):
        before()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(stream):
            begin.record()
            work()
            end.record()
        end.synchronize()
        found.append(1e3 * begin.elapsed_time(end))
    return sorted(found)[len(found) // 2]


def _stream() -> int:
    stream: int = torch.cuda.current_stream().cuda_stream
    return stream


def peer(rank: int, size: int, rows: Sequence[int], meeting: Path) -> None:
    """One process of the libraries' sums; the first writes what it measured beside `meeting`."""
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", f"file://{meeting}", rank=rank, world_size=size)
    import torch.distributed._symmetric_memory as symmetric

    group = dist.group.WORLD
    assert group is not None
    found: dict[str, dict[int, float]] = {"nccl": {}, "torch one-shot": {}}
    for num in rows:
        plain = torch.zeros(num * HIDDEN, dtype=torch.bfloat16, device="cuda")
        shared = symmetric.empty(num * HIDDEN, dtype=torch.bfloat16, device=plain.device).zero_()
        symmetric.rendezvous(shared, group.group_name)
        one_shot = torch.ops.symm_mem.one_shot_all_reduce
        found["nccl"][num] = _of_peer(partial(dist.all_reduce, plain))
        found["torch one-shot"][num] = _of_peer(partial(one_shot, shared, "sum", group.group_name))
    if rank == 0:
        meeting.with_suffix(".json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def _of_peer(call: Callable[[], Any]) -> float:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(5):
            call()

    def meet() -> None:
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()

    meet()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(_CALLS):
            call()
    return round(timed(stream, graph.replay, meet) / _CALLS, 2)


def of_peers(size: int, rows: Sequence[int], folder: Path) -> dict[str, dict[str, float]]:
    """What NCCL and torch take, by name and number of rows."""
    meeting = folder / "meeting"
    numbers = [str(each) for each in rows]
    command = [sys.executable, "-m", "tools.benchmarks.gpu_sum", "--rows", *numbers, "--peer"]
    processes = [
        subprocess.Popen([*command, str(rank), str(size), str(meeting)]) for rank in range(size)
    ]
    try:
        for process in processes:
            process.wait(_PEERS_S)
    finally:
        for process in processes:
            process.kill()
    found: dict[str, dict[str, float]] = json.loads(meeting.with_suffix(".json").read_text())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--peer", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")  # no load while a kernel waits for a peer
    if given.peer is not None:
        rank, size, meeting = given.peer
        peer(int(rank), int(size), given.rows, Path(meeting))
        return
    with tempfile.TemporaryDirectory() as name:
        ranks = Ranks(built(Path(name)), max(given.rows))
        found: dict[str, Any] = {
            "gpu": f"{len(ranks.devices)} x {torch.cuda.get_device_name(0)}",
            "torch": torch.__version__,
            "row_bytes": HIDDEN * 2,
            "floor": ranks.floors(),
            "us": {},
        }
        for kind in (SUM, FUSED, ENGINE):
            found["us"][kind] = {num: ranks.measured(num, kind) for num in given.rows}
            print(kind, found["us"][kind], flush=True)
        found["us"] |= of_peers(len(ranks.devices), given.rows, Path(name))
    text = json.dumps(found, indent=1)
    print(text)
    if given.json is not None:
        given.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
