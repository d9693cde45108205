"""Detection: GPUs from NVML in every state it can be in, and machines that are written down."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from profiles.hardware.cgroup import CgroupLimits
from profiles.hardware.detection import detect, detect_cpu
from profiles.hardware.gpus import KNOWN_GPUS, gpu_key
from profiles.hardware.machine import GB, family_of
from profiles.hardware.visible import visible
from profiles.hardware.written import parse_hardware


def test_a_board_is_described_as_nvml_tells_it(nvml: Any, board: Any) -> None:
    fake = nvml([board(), board(free=1 * GB)])
    machine = detect(fake)
    first, second = machine.gpus
    assert (first.key, first.family, first.pci_id) == ("h200", "hopper", "2335:10de")
    assert (first.total_bytes, second.free_bytes) == (150_754_820_096, 1 * GB)
    assert machine.driver == "570.172.08"
    assert machine.summary == "2 x NVIDIA H200"
    assert machine.no_gpu_reason == ""
    assert not fake.is_open


def test_old_bindings_that_answer_with_bytes(nvml: Any, board: Any) -> None:
    machine = detect(nvml([board(name=b"NVIDIA H200")], driver=b"535.1"))
    assert (machine.gpus[0].name, machine.driver) == ("NVIDIA H200", "535.1")


def test_a_board_in_mig_mode_is_its_slices(nvml: Any, board: Any) -> None:
    part = board(name="NVIDIA H200 MIG 3g.71gb", total=70 * GB, free=70 * GB)
    machine = detect(nvml([board(mig=[part, part])]))
    assert [gpu.is_mig for gpu in machine.gpus] == [True, True]
    assert {gpu.key for gpu in machine.gpus} == {None}  # a slice is not the board
    assert machine.gpus[0].family == "hopper"
    assert machine.gpus[0].total_bytes == 70 * GB


def test_mig_mode_without_slices_is_no_gpu(nvml: Any, board: Any) -> None:
    machine = detect(nvml([board(mig=[])]))
    assert machine.gpus == ()
    assert machine.no_gpu_reason == "GPU 0 cannot be used: it is in MIG mode without slices"


def test_a_lost_board_does_not_hide_the_others(nvml: Any, board: Any) -> None:
    machine = detect(nvml([board(error="GPU is lost"), board()]))
    assert [gpu.index for gpu in machine.gpus] == [1]
    assert machine.warnings == ("GPU 0 cannot be used: GPU is lost",)


def test_memory_that_the_machine_shares_is_the_machines(nvml: Any, board: Any) -> None:
    fake = nvml([board(name="NVIDIA GB10", pci_device_id=0x2E1210DE, no_memory=True)])
    machine = detect(fake)
    assert machine.gpus[0].is_unified
    assert machine.gpus[0].total_bytes == machine.cpu.total_bytes
    assert detect(nvml([board(no_memory=True)])).warnings == (
        "GPU 0 cannot be used: Not Supported",
    )


def test_nvlink_is_what_the_links_say(nvml: Any, board: Any) -> None:
    boards = [
        board(links=[0, 1]),
        board(links=[0, 0]),
        board(),
        board(name="NVIDIA A40", pci_device_id=0x223510DE, links=[1]),
    ]
    assert [gpu.nvlink for gpu in detect(nvml(boards)).gpus] == [8, 1, 1, 2]


def test_no_gpu_is_an_answer_with_the_reason(nvml: Any) -> None:
    reasons = {
        "no NVIDIA driver is installed": nvml.NVMLError_LibraryNotFound("Not Found"),
        "installed but not loaded": nvml.NVMLError_DriverNotLoaded("Not Loaded"),
        "NVML could not start: version mismatch": nvml.NVMLError("version mismatch"),
    }
    for reason, error in reasons.items():
        machine = detect(nvml(init_error=error))
        assert machine.gpus == ()
        assert reason in machine.no_gpu_reason
    assert detect(nvml()).no_gpu_reason == "the NVIDIA driver lists no GPU"


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (None, [0, 1, 2, 3]),
        ("2", [2]),
        ("3, 1", [3, 1]),
        ("GPU-b", [1]),
        ("0,9,1", [0]),  # CUDA stops at what names none
        ("", []),
        ("-1", []),
    ],
)
def test_what_cuda_hides_is_not_there(names: str | None, shown: list[int]) -> None:
    machine = parse_hardware("h200x4")
    gpus = [replace(gpu, uuid=f"GPU-{'abcd'[gpu.index]}0") for gpu in machine.gpus]
    found = visible(replace(machine, gpus=tuple(gpus)), names)
    assert [gpu.index for gpu in found.gpus] == shown
    assert bool(found.gpus) == (found.no_gpu_reason == "")
    if not shown:
        assert "CUDA_VISIBLE_DEVICES is" in found.no_gpu_reason


def test_this_machine_is_described_without_failing() -> None:
    machine = detect()
    assert machine.gpus or machine.no_gpu_reason
    assert machine.cpu.num_cores >= 1
    assert 0 < machine.cpu.free_bytes <= machine.cpu.total_bytes
    assert machine.cpu.model


@pytest.mark.heavy
def test_nvml_is_imported_only_when_asked_for_gpus() -> None:
    check = "import sys, profiles.hardware.detection; sys.exit('pynvml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_without_the_library_the_reason_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # what importing a missing module does
    assert detect().no_gpu_reason == "the nvidia-ml-py library is not installed"


def test_cgroup_limits_bound_cores_and_memory(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(
        "processor : 0\nmodel name : Xeon 6\nflags : avx2 avx512_bf16 amx_tile vmx\n\n"
        "processor : 1\nmodel name : other\nflags :\n"
    )
    limits = CgroupLimits(num_cores=0.5, memory_bytes=2 * GB, used_bytes=GB // 2)
    cpu = detect_cpu(tmp_path, limits)
    assert (cpu.model, cpu.num_cores) == ("Xeon 6", 1)
    assert (cpu.total_bytes, cpu.free_bytes) == (2 * GB, 2 * GB - GB // 2)
    assert cpu.instruction_sets == ("avx2", "avx512_bf16", "amx_tile")


def test_arm_processors_are_described_too(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor : 0\nFeatures : fp asimd bf16 i8mm sve\n")
    assert detect_cpu(tmp_path).instruction_sets == ("asimd", "bf16", "i8mm", "sve")


def test_every_known_gpu_is_recognised_by_name_and_by_pci_id() -> None:
    for gpu in KNOWN_GPUS:
        for device in gpu.pci_devices:
            assert gpu_key("anything", f"{device.upper()}:10DE") == gpu.key
        assert gpu_key(gpu.name, "ffff:10de") == gpu.key
        assert family_of(gpu.compute_capability) != "other"
    assert gpu_key("NVIDIA GeForce GTX 1080 Ti", "1b06:10de") is None
    assert gpu_key("NVIDIA A100-PCIE-80GB", "ffff:10de") == "a100"
    assert gpu_key("NVIDIA GeForce RTX 4080 SUPER", "ffff:10de") == "rtx4080"


@pytest.mark.parametrize(
    ("capability", "family"),
    [
        ((7, 0), "volta"),
        ((7, 5), "turing"),
        ((8, 6), "ampere"),
        ((8, 9), "ada"),
        ((11, 0), "blackwell"),
        ((12, 1), "blackwell"),
        ((5, 0), "other"),
    ],
)
def test_families(capability: tuple[int, int], family: str) -> None:
    assert family_of(capability) == family
