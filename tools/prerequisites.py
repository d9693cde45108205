"""What is looked at before an installation: the machine, its Python, port, folders and room.

Standard library only, and no syntax newer than Python 3.6.
"""

import errno
import os
import platform
import re
import shlex
import shutil
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from installer import ROOT, CannotInstall, can_be_made, queried, say, starts

# Models that the native engine takes by default, by the free memory in MiB and the compute
# capability of a GPU, with what is fetched. tests/packaging/test_before_install.py compares it
# with what is selected.
DEFAULTS = ((68500, "gpt-oss-120b", "65.3 GB"), (17000, "gpt-oss-20b", "13.8 GB"))
LOWEST_CAPABILITY = 8.0
MODEL_ROOM = 14e9  # of the smallest of them


def check_machine() -> None:
    """Raise CannotInstall where torch has no wheels."""
    system, machine = platform.system(), platform.machine()
    if system == "Linux" and machine in ("x86_64", "aarch64"):
        return
    if system == "Darwin" and machine == "arm64":
        if int(platform.mac_ver()[0].split(".")[0]) >= 14:
            return
        raise CannotInstall(f"it needs macOS 14 or later; this is {platform.mac_ver()[0]}.")
    raise CannotInstall(
        f"it runs on Linux (x86_64, aarch64) and macOS (Apple silicon); this is {system} {machine}."
        " On Windows, use WSL."
    )


def supported_pythons() -> "tuple[int, int]":
    """The lowest and highest minor version of Python 3 in pyproject.toml."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(r'requires-python = ">=3\.(\d+),<3\.(\d+)"', text)
    assert found is not None, "pyproject.toml has no requires-python of the known form"
    return int(found.group(1)), int(found.group(2)) - 1


def check_python(lowest: int, highest: int) -> None:
    """Raise CannotInstall, with the command that mends it, unless this Python will do."""
    if sys.version_info[0] == 3 and lowest <= sys.version_info[1] <= highest:
        return
    this = f"{platform.python_version()} ({sys.executable})"
    others = (f"python3.{minor}" for minor in range(highest, lowest - 1, -1))
    found = next(filter(starts, others), None)
    if found:
        remedy = f"`make serve PYTHON={found}` takes the one you have."
    elif shutil.which("uv"):
        remedy = (
            f"`uv python install 3.{lowest + 1}` fetches one; then "
            f'`make serve PYTHON="$(uv python find 3.{lowest + 1})"`.'
        )
    else:
        remedy = "install one and name it: `make serve PYTHON=/path/to/python3`."
    raise CannotInstall(f"it needs Python 3.{lowest} to 3.{highest}; this is {this}. {remedy}")


def check_port(settings: "Mapping[str, str]") -> None:
    """Raise CannotInstall, with the command that mends it, where the server could not listen."""
    host, text = settings.get("NIM_SERVER_HOST", "127.0.0.1"), settings.get("NIM_SERVER_PORT", "")
    if not text.isdigit() and text:
        return  # the server says what is wrong with it
    port = int(text or 8000)
    if port and not is_free(host, port):
        free = next((p for p in range(port + 1, min(port + 100, 65536)) if is_free(host, p)), 0)
        raise CannotInstall(f"port {port} is in use. Try `NIM_SERVER_PORT={free} make serve`.")


def is_free(host: str, port: int) -> bool:
    """Whether no other program listens there; of any other fault the server says more."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind((host, port))
    except OSError as error:
        return error.errno != errno.EADDRINUSE
    return True


def check_cache(settings: "Mapping[str, str]") -> None:
    """Raise CannotInstall where the model that a GPU is given by default could not be kept.

    The start looks at it as well, but minutes later, and knows which model it is.
    """
    if is_model_named(settings):
        return
    cache = cache_of(settings)
    other = f"Try `NIM_CACHE_PATH={shlex.quote(str(ROOT / '.cache' / 'harmonium'))} make serve`"
    if not can_be_made(cache):
        raise CannotInstall(f"the model cache {cache} cannot be written. {other}.")
    if (cache / "models").exists():
        return  # what is there may be all that it takes
    there = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free = shutil.disk_usage(str(there)).free
    if free < MODEL_ROOM:
        raise CannotInstall(
            f"the model cache {cache} has {free / 1e9:.1f} GB free, and gpt-oss-20b takes "
            f"{MODEL_ROOM / 1e9:.0f} GB. {other}, with a folder on a disk with that much."
        )


def is_model_named(settings: "Mapping[str, str]") -> bool:
    return any(settings.get(f"NIM_MODEL_{name}") for name in ("NAME", "PATH", "PROFILE"))


def cache_of(settings: "Mapping[str, str]") -> Path:
    return Path(os.path.expanduser(settings.get("NIM_CACHE_PATH", "~/.cache/harmonium")))


def tell_model(settings: "Mapping[str, str]") -> None:
    """Say how much more the start will fetch, where nobody named a model and none is there."""
    if is_model_named(settings) or (cache_of(settings) / "models").exists():
        return
    found = default_model(queried("compute_cap,memory.free"))
    if found:
        say(f"The start then fetches {found[0]}: up to {found[1]} more, into {cache_of(settings)}.")
        say("On a terminal it asks first, and offers smaller models.")


def default_model(gpus: "list[str]") -> "tuple[str, str] | None":
    """The largest model that one of these GPUs is given by default, and its size."""
    free = [0]
    for gpu in gpus:
        found = re.match(r"(\d+\.\d+), (\d+) MiB$", gpu)  # [N/A] where a GPU shares the host's
        if found and float(found.group(1)) >= LOWEST_CAPABILITY:
            free.append(int(found.group(2)))
    return next(((name, size) for least, name, size in DEFAULTS if max(free) >= least), None)


def check_room(folder: Path, num_bytes: float) -> None:
    """Raise CannotInstall where the folder cannot be written or its disk is too full."""
    if not os.access(str(folder), os.W_OK):
        raise CannotInstall(f"{folder} cannot be written; clone into a folder of your own.")
    free = shutil.disk_usage(str(folder)).free
    if free < num_bytes:
        raise CannotInstall(
            f"{folder} has {free / 1e9:.1f} GB free, and the installation takes about "
            f"{num_bytes / 1e9:.0f} GB; make room, or clone onto another disk."
        )
