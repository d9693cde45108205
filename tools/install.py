#!/usr/bin/env python3
"""Install Harmonium into .venv, saying what is fetched, how large it is and from where.

    python3 tools/install.py [--this-python] [--cpu] [--into FOLDER] [EXTRA ...]

EXTRA is an extra of pyproject.toml, such as llama-cpp, or an engine whose library has an
environment of its own, vllm, tensorrt-llm or dynamo: that one is made under .engines, and the
server of .venv finds it there.

`make` runs it before every target, so that a second run with nothing to do is quick and silent.
Standard library only, and no syntax newer than Python 3.6: an old Python must get as far as being
told that it is too old.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import ssl
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

from engine_environments import (
    GUESTS,
    add_guest,
    build_llama_cpp_for_cuda,
    check_compiler,
    group_of,
    requirements_of,
)
from installer import (
    DEVNULL,
    ROOT,
    CannotInstall,
    Installer,
    flags,
    found_uv,
    nvidia_gpu,
    pip_settings,
    say,
)
from prerequisites import (
    check_cache,
    check_machine,
    check_port,
    check_python,
    check_room,
    supported_pythons,
    tell_model,
)

__all__ = ["Installer", "nvidia_gpu", "pip_settings"]  # tests take them from here

TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
INDEX_ANSWERS_WITHIN_S = 5
# Sums of the pinned wheels for x86_64 Linux, which are the largest.
CPU_SIZE, CUDA_SIZE = "0.26 GB", "2.8 GB"
# On the disk: 2.3 GB were seen with the tests' packages; CUDA's is estimated from its wheels.
CPU_ROOM, CUDA_ROOM = 3e9, 8e9


def main() -> int:
    parser = argparse.ArgumentParser(description="Install Harmonium into .venv.")
    parser.add_argument("extras", nargs="*", metavar="EXTRA", help="also what this extra names")
    parser.add_argument(
        "--this-python", action="store_true", help="make .venv anew if it is of another Python"
    )
    parser.add_argument(
        "--into", type=Path, default=Path(".venv"), metavar="FOLDER", help="another one than .venv"
    )
    parser.add_argument("--serve", action="store_true", help="first look whether it can serve here")
    parser.add_argument("--cpu", action="store_true", help="as on a machine without a GPU")
    asked = parser.parse_args()
    extras = [extra for extra in asked.extras if extra not in GUESTS]
    try:
        check_machine()
        check_python(*supported_pythons())
        if asked.serve:
            check_port(os.environ)
        gpu = "" if asked.cpu else nvidia_gpu()
        if asked.serve and gpu:
            check_cache(os.environ)
        environment = Environment(ROOT / asked.into, asked.this_python)
        if not environment.has(extras, gpu):
            if asked.serve and gpu:
                tell_model(os.environ)
            install(environment, extras, gpu)
        for guest in (extra for extra in asked.extras if extra in GUESTS):
            if not environment.has_guest(guest, gpu):
                install_guest(environment, guest, gpu)
    except CannotInstall as error:
        print(f"Cannot install Harmonium: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped. The next run goes on from here.", file=sys.stderr)
        return 130
    return 0


# The virtual environment and what was installed into it.


class Environment:
    """A .venv, and in it a note of what was installed from which pins for which folder."""

    def __init__(self, folder: Path, this_python: bool = False) -> None:
        self.folder = folder
        self._this_python = this_python
        self.python = folder / "bin" / "python"
        self._note = folder / "harmonium.json"

    @property
    def settings(self) -> "dict[str, list[str]]":
        """What pip is told here about where packages come from."""
        return pip_settings(self.python)

    def has(self, extras: "list[str]", gpu: str = "") -> bool:
        """Whether a run with these extras would change nothing.

        What was built without a GPU does not do where there is one.
        """
        note = self.note()
        is_noted = note.get("pins") == pins_hash() and set(extras) <= set(note["extras"])
        return is_noted and (not gpu or note.get("gpu", True)) and self.fault() is None

    def has_guest(self, guest: str, gpu: str) -> bool:
        """Whether an engine's own environment is there, made of what pyproject.toml says now."""
        made = self.note().get("engines", {}).get(guest.replace("-", "_"), {})
        wanted = requirements_of(group_of(guest, gpu))
        return made.get("requirements") == wanted and Path(made["python"]).exists()

    def note(self) -> dict:
        try:
            return dict(json.loads(self._note.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return {}

    def write_note(self, extras: "list[str]", gpu: str = "") -> None:
        engines = self.note().get("engines", {})
        note = {"pins": pins_hash(), "extras": extras, "folder": str(self.folder)}
        self._write({**note, "gpu": bool(gpu), "engines": engines})

    def note_guest(self, guest: str, python: Path, requirements: "list[str]") -> None:
        """Name the Python of an engine, for the server that runs in this environment."""
        note = self.note()
        engines = note.setdefault("engines", {})
        engines[guest.replace("-", "_")] = {"python": str(python), "requirements": requirements}
        self._write(note)

    def _write(self, note: dict) -> None:
        self._note.write_text(json.dumps(note), encoding="utf-8")

    def fault(self) -> "str | None":
        """Why this environment cannot be used, if it is there and cannot."""
        code = "import sys; print('3.%d' % sys.version_info[1])"
        try:
            asked = subprocess.run([str(self.python), "-c", code], stdout=subprocess.PIPE)
        except OSError:
            return "its Python is gone"
        if asked.returncode:
            return "its Python does not start"
        version = asked.stdout.decode().strip()
        lowest, highest = supported_pythons()
        if not lowest <= int(version.split(".")[1]) <= highest:
            return f"it is of Python {version}"
        if self._this_python and version != f"3.{sys.version_info[1]}":
            return f"it is of Python {version}, and 3.{sys.version_info[1]} was asked for"
        if self.note().get("folder", str(self.folder)) != str(self.folder):
            return f"it was made for {self.note()['folder']}"
        return None

    def make(self, uv: "str | None") -> None:
        """Make the environment, anew if the one that is there cannot be used."""
        if self.folder.exists():
            if not (self.folder / "pyvenv.cfg").exists():
                raise CannotInstall(f"{self.folder} is there but is no virtual environment.")
            fault = self.fault()
            if fault is None:
                return
            say(f"Making {self.folder.name} anew: {fault}.")
            shutil.rmtree(str(self.folder))
        say(f"Making {self.folder.name} with Python {platform.python_version()} ({sys.executable})")
        command = [sys.executable, "-m", "venv"]
        if uv and importlib.util.find_spec("ensurepip") is None:  # Debian's python3 without -venv
            command = [uv, "venv", "--quiet", "--seed", "--python", sys.executable]
        if subprocess.run([*command, str(self.folder)]).returncode:
            shutil.rmtree(str(self.folder), ignore_errors=True)
            raise CannotInstall("the virtual environment could not be made; the reason is above.")


def pins_hash() -> str:
    content = (ROOT / "pyproject.toml").read_bytes() + (ROOT / "constraints.txt").read_bytes()
    return hashlib.sha256(content).hexdigest()


# The installation itself.


def install(environment: Environment, extras: "list[str]", gpu: str = "") -> None:
    """Bring the environment to what pyproject.toml and constraints.txt say."""
    started = time.time()
    if gpu:  # before gigabytes are fetched
        check_compiler(sys.executable)
        if "llama-cpp" in extras:
            check_compiler(sys.executable, with_cpp=True)
    if not environment.python.exists():
        check_room(environment.folder.parent, CUDA_ROOM if gpu else CPU_ROOM)
    uv = found_uv()
    environment.make(uv)
    installer = Installer(environment.python, uv)
    extras = sorted({*extras, *environment.note().get("extras", ())})
    hint = "" if uv else " (uv, where it is installed, takes a quarter of the time)"
    say(f"Installing Harmonium with {installer.name} into {environment.folder.name}{hint}.")
    if not has_torch(environment.python, gpu):
        install_torch(installer, gpu)
    if gpu and "llama-cpp" in extras and not has_llama_cpp_with_cuda(environment):
        build_llama_cpp_for_cuda(environment.python, installer, llama_cpp_requirement())
    target = f".[{','.join(extras)}]" if extras else "."
    installer.install("--constraint", "constraints.txt", "--editable", target)
    environment.write_note(extras, gpu)
    folder = os.path.relpath(str(environment.folder), str(ROOT))
    say(
        f"Installed in {time.time() - started:.0f} s. "
        f"`. {folder}/bin/activate` puts `harmonium` on your PATH."
    )


def install_guest(environment: Environment, guest: str, gpu: str) -> None:
    """Make an engine's own environment, and name it to the server and on the screen."""
    started = time.time()
    uv = found_uv()
    builds = "" if gpu or why_not_from(TORCH_CPU_INDEX, environment.settings) else TORCH_CPU_INDEX
    python = add_guest(guest, gpu, uv, builds)
    environment.note_guest(guest, python, requirements_of(group_of(guest, gpu)))
    say(
        f"Installed in {time.time() - started:.0f} s. The server of this checkout finds {guest} "
        f"there; for another one: NIM_ENGINE_PYTHON={guest.replace('-', '_')}={python}"
    )


def has_llama_cpp_with_cuda(environment: Environment) -> bool:
    return any(environment.folder.glob("lib/python3*/site-packages/llama_cpp/lib/*ggml-cuda*"))


def llama_cpp_requirement() -> str:
    """The release that pyproject.toml pins."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r'"(llama-cpp-python==[^"]+)"', text)
    assert found is not None, "pyproject.toml does not pin llama-cpp-python"
    return found.group(1)


# torch, whose builds for CPU and GPU are ten times apart in size.


def has_torch(python: Path, gpu: str = "") -> bool:
    """Whether the pinned torch is already there; on a GPU its CPU build will not do."""
    code = "import importlib.metadata as m; print(m.version('torch'))"
    asked = subprocess.run([str(python), "-c", code], stdout=subprocess.PIPE, stderr=DEVNULL)
    version, _, build = asked.stdout.decode().strip().partition("+")
    return version == torch_version() and not (gpu and build == "cpu")


def torch_version() -> str:
    """The version that constraints.txt pins."""
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    found = re.search(r"^torch==(\S+)$", pins, flags=re.MULTILINE)
    assert found is not None, "constraints.txt does not pin torch"
    return found.group(1)


def install_torch(installer: Installer, gpu: str) -> None:
    """Install the CPU build where no GPU could use another; else leave torch to the pins."""
    if platform.system() == "Darwin":
        return  # there is one build only
    if gpu:
        say(f"Found {gpu}: torch comes with CUDA, about {CUDA_SIZE} to fetch in all.")
        installer.uninstall("torch")  # a CPU build of the same version satisfies the pins
        return
    reason = why_not_from(TORCH_CPU_INDEX, installer.settings)
    if reason:
        say(f"PyTorch's CPU index is out of reach: {reason}.")
        say(f"So torch may come with CUDA: {CUDA_SIZE} to fetch, not {CPU_SIZE}. Ctrl-C stops;")
        say("pip's settings index-url and find-links name a mirror.")
        return
    say(f"No NVIDIA GPU: torch comes as its CPU build, about {CPU_SIZE} to fetch in all.")
    installer.install("--no-deps", f"torch=={torch_version()}", index=TORCH_CPU_INDEX)


def why_not_from(index: str, settings: "dict[str, list[str]]") -> str:
    """Why torch's CPU build cannot be had from an index, or nothing when it can."""
    if flags("no-index", settings.get("no-index", [])):
        return "your pip settings say no-index"
    context = ssl.create_default_context(cafile=next(iter(settings.get("cert", ())), None))
    url, limit = index + "/torch/", INDEX_ANSWERS_WITHIN_S
    try:
        with urllib.request.urlopen(url, timeout=limit, context=context) as answer:
            page = answer.read().decode("utf-8", "replace")
    except OSError as error:
        return f"it does not answer ({getattr(error, 'reason', error)})"
    build = f"torch-{torch_version()}+cpu-"
    return "" if build in urllib.parse.unquote(page) else f"it has no {build}*"


if __name__ == "__main__":
    sys.exit(main())
