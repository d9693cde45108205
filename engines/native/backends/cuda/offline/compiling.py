"""Triton compiling for a GPU that is not here; what of its resources a kernel then takes.

The keys under which Triton keeps what it compiles are those that it looks for on the GPU, as long
as Triton itself and the kernels' sources are the same.
"""

from __future__ import annotations

import re
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import driver as nvidia
from triton.runtime import driver

from engines.native.backends.cuda.offline.launches import DistinctLaunch

_USED: Final = re.compile(r"REG:(\d+) STACK:(\d+)")
_WARP: Final = 32


class _Absent:
    """A driver of Triton for a GPU of this architecture that is not here."""

    def __init__(self, architecture: int) -> None:
        self._target = GPUTarget("cuda", architecture, _WARP)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        del device
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


@contextmanager
def compiling_for(architecture: int) -> Iterator[None]:
    """A block inside which Triton compiles for a compute capability, such as 90 for 9.0.

    One for a process: a kernel remembers what it was first compiled for.
    """
    before = driver._active
    driver.set_active(_Absent(architecture))
    try:
        yield
    finally:
        driver._active = before


@dataclass(frozen=True, slots=True)
class Resources:
    """What a compiled kernel takes of a multiprocessor."""

    kernel: str
    options: dict[str, Any]
    shared_bytes: int  # of a program
    registers: int  # of a thread
    stack_bytes: int  # of a thread: what does not fit into registers


def compiled(launch: DistinctLaunch) -> Any:
    """Triton's compiled kernel, in its cache from now on."""
    return launch.kernel.warmup(*launch.args, grid=launch.grid, **launch.options)


def resources(launch: DistinctLaunch, kernel: Any) -> Resources:
    """The compiled kernel's resources, read from its machine code."""
    tool = Path(nvidia.__file__).parent / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        printed = subprocess.run(
            [tool, "-res-usage", file.name], capture_output=True, text=True, check=True
        )
    used = _USED.search(printed.stdout + printed.stderr)
    assert used is not None, printed
    return Resources(
        launch.name, launch.options, kernel.metadata.shared, int(used[1]), int(used[2])
    )


def _linked(
    name: str, source: str, folder: str, library_dirs: list[str], include_dirs: list[str],
    libraries: list[str],
) -> str:  # fmt: skip
    """Compile a C module as Triton does, but linked with libraries that nothing is taken from.

    Many a linker drops them; the empty driver's library is one.
    """
    module = f"{folder}/{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
    includes = [*include_dirs, folder, sysconfig.get_path("include", "posix_prefix")]
    subprocess.run(
        ["gcc", source, "-O3", "-shared", "-fPIC", "-Wno-psabi", "-Wl,--no-as-needed", "-o", module,
         *(f"-l:{each}" if ".so" in each else f"-l{each}" for each in libraries),
         *(f"-L{each}" for each in library_dirs), *(f"-I{each}" for each in includes)],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return module


class _NotLoaded(Exception):
    """A module was compiled, and is not wanted in this process."""


def build_launchers(kernels: list[Any]) -> None:
    """Put into Triton's cache the C modules that start kernels, so that a start needs no compiler.

    They are linked with the driver's library, for which an empty one stands here; without the
    driver they cannot be loaded.
    """

    def refuse(*_: Any) -> Any:
        raise _NotLoaded

    load = triton.runtime.build._load_module_from_path
    with (
        triton.knobs.build.scope(),
        tempfile.TemporaryDirectory(prefix="harmonium-libcuda-") as folder,
    ):
        library = Path(folder) / "libcuda.so.1"
        link = ["gcc", "-shared", "-o", str(library), "-x", "c", "/dev/null"]
        subprocess.run([*link, f"-Wl,-soname,{library.name}"], check=True)
        triton.knobs.nvidia.libcuda_path = folder
        triton.knobs.build.impl = _linked
        triton.runtime.build._load_module_from_path = refuse
        try:
            with suppress(_NotLoaded):
                nvidia.CudaUtils()
            if hasattr(nvidia, "make_launcher"):  # before Triton 3.7 each signature has its own
                for kernel in kernels:
                    with suppress(_NotLoaded):
                        nvidia.CudaLauncher(kernel.src, kernel.metadata)
        finally:
            triton.runtime.build._load_module_from_path = load
