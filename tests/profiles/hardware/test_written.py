"""Machines that are written down: every kind that an operator may have, and what is misspelt."""

from __future__ import annotations

import pytest

from profiles.errors import InvalidHardware
from profiles.hardware.gpus import KNOWN_GPUS
from profiles.hardware.machine import GB
from profiles.hardware.written import parse_hardware


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("h200x8", "8 x NVIDIA H200"),
        ("8xH200", "8 x NVIDIA H200"),
        ("H100-NVL x 2", "2 x NVIDIA H100 NVL"),
        ("rtx-pro-6000", "1 x NVIDIA RTX PRO 6000 Blackwell Server Edition"),
        ("a100-40x4", "4 x NVIDIA A100-SXM4-40GB"),
        ("rtx5090", "1 x NVIDIA GeForce RTX 5090"),
        ("rtx-4090 x 2", "2 x NVIDIA GeForce RTX 4090"),
        ("gb10", "1 x NVIDIA GB10"),
        ("h200x2+h100x2", "2 x NVIDIA H200, 2 x NVIDIA H100 80GB HBM3"),
        ("h100:2g.20gbx3", "3 x NVIDIA H100 80GB HBM3 MIG 2g.20gb"),
        ("2xh200:3g.71gb", "2 x NVIDIA H200 MIG 3g.71gb"),
        ("cpu", "2 CPU cores, no GPU"),
        ("cpux1", "1 CPU core, no GPU"),
        ("cpux16", "16 CPU cores, no GPU"),
    ],
)
def test_hardware_strings(text: str, summary: str) -> None:
    machine = parse_hardware(text)
    assert machine.summary == summary
    assert machine.is_assumed


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("h2000x8", "did you mean 'h200'"),
        ("b20", "known: cpu, v100, t4, rtx5000, rtx6000, a100-40, a100"),
        ("mi300x", "'mi300x' is not an NVIDIA GPU"),
        ("rtx509", "did you mean 'rtx5090'"),
        ("8xrtx509", "'rtx509' is not a known name .did you mean 'rtx5090'"),
        ("h200x0", "from 1 to 1024"),
        ("h200x99999999999", "from 1 to 1024"),
        ("2xh200x2", "not of the form"),
        ("", "not of the form"),
        ("h100:2g", "'2g' is not of the form"),
        ("h100:2g.20gbx0", "from 1 to 1024"),
        ("h100:9g.90gb", "has no slice of 90 GB"),
        ("h100:free=lots", "'lots' is not an amount such as '40gb' or '15%'"),
        ("h100:free=90gb", "has 85.5 GB in all"),
        ("h100:used=120%", "has 85.5 GB in all"),
        ("h100+", "not of the form"),
    ],
)
def test_wrong_hardware_strings_name_the_remedy(text: str, complaint: str) -> None:
    with pytest.raises(InvalidHardware, match=complaint):
        parse_hardware(text)


def test_a_gpu_may_be_used_in_part() -> None:
    first, second, third = parse_hardware("h100:used=15%+h100x2:free=40gb").gpus
    assert first.free_bytes == pytest.approx(0.85 * first.total_bytes)
    assert second.free_bytes == third.free_bytes == 40 * GB
    assert [first.index, second.index, third.index] == [0, 1, 2]


def test_a_slice_is_not_the_board() -> None:
    part = parse_hardware("a100:1g.10gbx7").gpus[6]
    assert (part.is_mig, part.key, part.nvlink) == (True, None, 1)
    assert part.total_bytes == pytest.approx(10.47e9, rel=1e-3)


def test_a_host_has_cores_and_memory() -> None:
    assert parse_hardware("h200x2").cpu.num_cores == 32
    assert parse_hardware("cpux16:ram=64gb").cpu.total_bytes == 64 * GB
    machine = parse_hardware("rtx4090+cpux8:ram=32gb")
    assert (machine.cpu.num_cores, machine.cpu.free_bytes) == (8, 32 * GB)
    assert parse_hardware("l4:ram=16gb").cpu.total_bytes == 16 * GB


def test_a_rack_is_many_hosts() -> None:
    hosts = [gpu.host for gpu in parse_hardware("gb200x72").gpus]
    assert (hosts.count(0), max(hosts) + 1) == (4, 18)
    assert {gpu.host for gpu in parse_hardware("h200x8").gpus} == {0}


def test_every_known_gpu_can_be_written_down() -> None:
    for gpu in KNOWN_GPUS:
        written = f"{gpu.key}x2", f"2x{gpu.key}", f"2 x {gpu.key.replace('-', '')}:used=10%"
        for text in written:  # the x of rtx5090 is none of a count
            assert parse_hardware(text).summary == f"2 x {gpu.name}", text
    assert [gpu.key for gpu in parse_hardware("2xrtx5090+l4").gpus] == ["rtx5090", "rtx5090", "l4"]


def test_any_board_can_be_written_down_by_capability_and_memory() -> None:
    (board,) = parse_hardware("sm120:24gb").gpus
    assert (board.compute_capability, board.family, board.key) == ((12, 0), "blackwell", None)
    assert 24 * GB < board.total_bytes < 24 * 2**30
    two = parse_hardware("sm89:48gbx2:used=50%+cpux8").gpus
    assert [gpu.free_bytes / gpu.total_bytes for gpu in two] == pytest.approx([0.5, 0.5])
    assert len(parse_hardware("4 x sm_90:80gb").gpus) == 4
    for wrong in ("sm120", "sm120:0gb", "sm120:2g.20gb"):
        with pytest.raises(InvalidHardware, match="say its memory too"):
            parse_hardware(wrong)


def test_a_board_of_unified_memory_is_the_machine() -> None:
    for name in ("gb10", "dgx-spark", "thor", "jetson-thor", "orin"):
        machine = parse_hardware(name)
        assert machine.gpus[0].is_unified
        assert machine.cpu.total_bytes == machine.gpus[0].total_bytes
