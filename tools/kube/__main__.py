"""Runs a command with KUBECONFIG of a Kubernetes API server that lives as long as the command.

Usage: python -m tools.kube COMMAND...

The first of these that is there is used: KUBECONFIG; the programs of KUBE_BINARIES (`.cache/kube`
if unset), which are built if KUBE_SOURCE names a git directory of openshift/microshift; `kind`.
Without any, the command runs without an API server, and its tests say that they are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.kube.build import PROGRAMS, build
from tools.kube.server import cluster


def main(command: list[str]) -> int:
    binaries = Path(os.environ.get("KUBE_BINARIES") or ".cache/kube").absolute()
    source = os.environ.get("KUBE_SOURCE")
    if os.environ.get("KUBECONFIG"):
        return subprocess.run(command, check=False).returncode
    if source:
        build(Path(source), binaries)
    if all((binaries / name).exists() for name in PROGRAMS):
        with (
            tempfile.TemporaryDirectory(prefix="kube-") as folder,
            cluster(binaries, Path(folder)) as kubeconfig,
        ):
            return _run(command, kubeconfig)
    if shutil.which("kind"):
        return _with_kind(command)
    print(
        f"No API server: set KUBECONFIG, or KUBE_BINARIES to a folder with {', '.join(PROGRAMS)}, "
        "or KUBE_SOURCE to a git directory of openshift/microshift to build them from",
        flush=True,
    )
    return subprocess.run(command, check=False).returncode


def _run(command: list[str], kubeconfig: Path) -> int:
    environment = os.environ | {"KUBECONFIG": str(kubeconfig)}
    return subprocess.run(command, env=environment, check=False).returncode


def _with_kind(command: list[str]) -> int:
    name = f"harmonium-{os.getpid()}"
    with tempfile.TemporaryDirectory() as folder:
        kubeconfig = Path(folder) / "kubeconfig"
        place = ["--name", name, "--kubeconfig", str(kubeconfig)]
        try:
            subprocess.run(["kind", "create", "cluster", *place], check=True)
            # Its volumes cannot grow; tests make a class of this name.
            remove = ["kubectl", "--kubeconfig", str(kubeconfig), "delete", "storageclass"]
            subprocess.run([*remove, "standard"], check=False)
            return _run(command, kubeconfig)
        finally:
            subprocess.run(["kind", "delete", "cluster", *place], check=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
