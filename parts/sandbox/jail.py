"""The command line of a sandbox: bubblewrap, with nothing of this machine but Python's files.

No /proc, no process of another, no network but for a guest that needs it; all is read-only but a
/tmp in memory. What may be used in it is bounded by the guest itself (guest/frame.py), before
anything of the model's is looked at.
"""

from __future__ import annotations

import shutil
import ssl
import subprocess
import sys
from dataclasses import dataclass
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
_GUESTS: Final = Path(__file__).with_name("guest")  # they import the standard library alone
_IMPORTED_AT: Final = "/guest"
# What names and certificates are found by.
_NETWORK: Final = ("resolv.conf", "hosts", "nsswitch.conf", "gai.conf", "pki", "ca-certificates")


@dataclass(frozen=True, slots=True)
class Guest:
    """A program for sandboxes: a module of `guest` with `main`."""

    name: str  # of the tool
    module: str
    has_network: bool = False


def fault(guest: Guest) -> str | None:
    """Why no sandbox works here, with the remedy; None if one does."""
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed (Debian, Ubuntu: apt-get install bubblewrap)"
    try:
        tried = subprocess.run(
            command(guest),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TRY_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"bubblewrap did not start within {_TRY_S:g} s"
    if tried.returncode == 0:
        return None
    said = tried.stderr.decode("utf-8", "replace").strip().splitlines() or ["it said nothing"]
    return (
        f"bubblewrap failed ({said[-1]}). It needs user namespaces: in a container, seccomp and "
        "AppArmor profiles that allow unshare and mount (docker run --security-opt "
        "seccomp=unconfined --security-opt apparmor=unconfined)"
    )


def command(guest: Guest) -> list[str]:
    """What runs a guest in a sandbox."""
    module = f"parts.sandbox.guest.{guest.module}"
    program = f"import sys; sys.path.insert(0, {_IMPORTED_AT!r}); import {module} as m; m.main()"
    python = Path(sys.executable)
    # Where Python and its packages lie; the working directory is not among them.
    folders = dict.fromkeys([*_system(), sys.base_prefix, sys.prefix])
    return [
        *("bwrap", "--unshare-user", "--unshare-all", "--disable-userns"),
        *(("--share-net",) if guest.has_network else ()),
        *("--die-with-parent", "--cap-drop", "ALL"),  # a session of its own: toolbox.py
        *("--uid", "65534", "--gid", "65534", "--hostname", "sandbox", "--clearenv"),
        *(word for name, value in _ENVIRONMENT.items() for word in ("--setenv", name, value)),
        *("--size", str(_TMP_BYTES), "--tmpfs", "/tmp"),  # first: Python may lie in it
        *(word for folder in folders for word in ("--ro-bind", folder, folder)),
        *("--ro-bind", str(_GUESTS), f"{_IMPORTED_AT}/parts/sandbox/guest"),
        *_links(),
        *(_network() if guest.has_network else ()),
        *("--dev", "/dev", "--size", str(_SHM_BYTES), "--tmpfs", "/dev/shm"),
        *("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/tmp", "--"),
        *(str(python), "-I", "-c", program),
    ]


def _system() -> list[str]:
    """The system's own folders; where they are links, `_links` has them."""
    names = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/etc/alternatives", "/etc/ld.so.cache")
    return [name for name in names if Path(name).exists() and not Path(name).is_symlink()]


def _links() -> list[str]:
    links = (Path(name) for name in ("/lib", "/lib32", "/lib64", "/bin"))
    found = (path for path in links if path.is_symlink())
    return [word for path in found for word in ("--symlink", str(path.readlink()), str(path))]


def _network() -> list[str]:
    """How a guest finds names and certificates; the environment of the server may name those."""
    paths = ssl.get_default_verify_paths()
    certificates = [path for path in (paths.cafile, paths.capath) if path]
    files = [f"/etc/{name}" for name in _NETWORK] + certificates
    named = (("SSL_CERT_FILE", paths.cafile), ("SSL_CERT_DIR", paths.capath))
    return [
        *(word for path in files if Path(path).exists() for word in ("--ro-bind", path, path)),
        *(word for name, path in named if path for word in ("--setenv", name, path)),
    ]
