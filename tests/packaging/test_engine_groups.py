"""What an engine's own environment is made of resolves, by the metadata of the public index."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.sdist import fetch_source

ROOT = Path(__file__).parents[2]
PUBLIC_INDEX = "https://pypi.org/simple"
DOCKERFILE = (ROOT / "Dockerfile").read_text()
GROUPS = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]


def uv(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "uv", "--no-config", "pip", "compile", "--quiet"]
    command += ["--no-header", "--no-annotate", "--default-index", PUBLIC_INDEX, *arguments]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("UV_")}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)


def pins_of(group: str, *options: str) -> dict[str, str]:
    """Compile a group for a Linux with a GPU; skip where the index does not answer."""
    platform = ("--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_35")
    asked = uv("--group", f"pyproject.toml:{group}", "--only-binary", ":all:", *platform, *options)
    if "Failed to fetch" in asked.stderr or "Could not connect" in asked.stderr:
        pytest.skip(f"{PUBLIC_INDEX} does not answer: {asked.stderr}")
    assert asked.returncode == 0, asked.stderr
    return dict(line.split("==") for line in asked.stdout.splitlines() if "==" in line)


def metadata_only_wheel(folder: Path) -> None:
    """TensorRT-LLM's wheel as far as its requirements: the index has its source alone."""
    (wanted,) = (each for each in GROUPS["tensorrt-llm"] if each.startswith("tensorrt-llm=="))
    version = wanted.partition("==")[2]
    fetched = fetch_source(wanted, "wheel_stub.buildapi", folder)
    with tarfile.open(fetched) as source:
        member = next(m for m in source.getmembers() if re.fullmatch(r"[^/]+/PKG-INFO", m.name))
        read = source.extractfile(member)
        assert read is not None
        metadata = read.read().decode()
    info = f"tensorrt_llm-{version}.dist-info"
    kind = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(folder / f"tensorrt_llm-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(f"{info}/WHEEL", kind)
        wheel.writestr(f"{info}/RECORD", f"{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")


@pytest.mark.slow
@pytest.mark.heavy
def test_tensorrt_llms_environment_resolves(tmp_path: Path) -> None:
    """All but TensorRT itself, which NVIDIA's index alone has as wheels."""
    metadata_only_wheel(tmp_path / "wheels")
    override = tmp_path / "without.txt"
    override.write_text("tensorrt ; sys_platform == 'never'\n")
    pins = pins_of(
        "tensorrt-llm", "--find-links", str(tmp_path / "wheels"), "--override", str(override)
    )
    assert pins["llguidance"] == "0.7.29"  # what the contract's tests use (make test-trtllm)
    assert pins["transformers"] == "4.57.3"
    assert {"msgspec", "pyzmq", "numpy", "torch"} <= pins.keys()


@pytest.mark.slow
@pytest.mark.heavy
def test_vllms_environment_resolves() -> None:
    pins = pins_of("vllm")
    assert {"vllm", "msgspec", "pyzmq", "numpy", "torch"} <= pins.keys()


def test_the_engine_process_gets_what_it_imports() -> None:
    """Whatever the library brings along: docs/engines.md says what the process needs."""
    for group, wanted in GROUPS.items():
        names = {re.split(r"[=<>]", each)[0] for each in wanted}
        assert {"msgspec", "numpy", "pyzmq"} < names, group


def test_the_stand_in_computes_with_the_versions_that_tensorrt_llm_pins() -> None:
    text = (ROOT / "tests/engines/tensorrt_llm/computing/requirements.txt").read_text()
    assert "llguidance==0.7.29\n" in text
    assert "transformers==4.57.3\n" in text


def test_the_images_hold_the_releases_that_the_environments_would() -> None:
    """vLLM's image may be another release than the installer's, but one whose sources were read."""
    base = dict(re.findall(r"^ARG (\w+)_IMAGE=\S+:(\S+)@sha256:[0-9a-f]{64}$", DOCKERFILE, re.M))
    read = json.loads((ROOT / "tests/engines/vllm/surface.json").read_text())["versions"]
    assert base["VLLM"].removeprefix("v") in read
    assert GROUPS["vllm"][0].removeprefix("vllm==") in read
    assert f"tensorrt-llm=={base['TENSORRT_LLM']}" in GROUPS["tensorrt-llm"]
    # What the installer adds to the library, the image adds too.
    finish = (ROOT / "tools/packaging/finish").read_text()
    assert "for name in msgspec zmq numpy; do" in finish
