"""The command line of a sandbox: bubblewrap, with nothing of this machine but Python's files.

No network, no /proc, no process of another; all is read-only but a /tmp in memory. What may be
used in it is bounded by the guest itself (guest.py), which runs before the model's code.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

_TMP_BYTES: Final = 64 << 20
_SHM_BYTES: Final = 4 << 20
_TRY_S: Final = 30.0
_ENVIRONMENT: Final = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "OPENBLAS_NUM_THREADS": "1",  # each thread reserves memory
    "OMP_NUM_THREADS": "1",
    "MPLCONFIGDIR": "/tmp",
}


def fault() -> str | None:
    """Why no sandbox works here, with the remedy; None if one does."""
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed (Debian, Ubuntu: apt-get install bubblewrap)"
    try:
        tried = subprocess.run(command("pass"), capture_output=True, timeout=_TRY_S, check=False)
    except subprocess.TimeoutExpired:
        return f"bubblewrap did not start within {_TRY_S:g} s"
    if tried.returncode == 0:
        return None
    said = tried.stderr.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"]
    return (
        f"bubblewrap failed ({said[-1]}). It needs user namespaces: in a container, a seccomp "
        "profile that allows unshare and mount (docker run --security-opt seccomp=unconfined)"
    )


def command(program: str) -> list[str]:
    """What runs a Python program in a sandbox."""
    python = Path(sys.executable)
    # Where Python and its packages lie; the working directory is not among them.
    folders = dict.fromkeys([*_system(), sys.base_prefix, sys.prefix])
    return [
        *("bwrap", "--unshare-user", "--unshare-all", "--disable-userns"),
        *("--die-with-parent", "--cap-drop", "ALL"),  # a session of its own: toolbox.py
        *("--uid", "65534", "--gid", "65534", "--hostname", "sandbox", "--clearenv"),
        *(word for name, value in _ENVIRONMENT.items() for word in ("--setenv", name, value)),
        *("--size", str(_TMP_BYTES), "--tmpfs", "/tmp"),  # first: Python may lie in it
        *(word for folder in folders for word in ("--ro-bind", folder, folder)),
        *_links(),
        *("--dev", "/dev", "--size", str(_SHM_BYTES), "--tmpfs", "/dev/shm"),
        *(
            "--remount-ro",
            "/dev",
            "--remount-ro",
            "/",
            "--chdir",
            "/tmp",
            "--",
            str(python),
            "-I",
            "-c",
            program,
        ),
    ]


def _system() -> list[str]:
    """The system's own folders; where they are links, `_links` has them."""
    names = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/etc/alternatives", "/etc/ld.so.cache")
    return [name for name in names if Path(name).exists() and not Path(name).is_symlink()]


def _links() -> list[str]:
    links = (Path(name) for name in ("/lib", "/lib32", "/lib64", "/bin"))
    found = (path for path in links if path.is_symlink())
    return [word for path in found for word in ("--symlink", str(path.readlink()), str(path))]
