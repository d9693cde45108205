"""`harmonium build-engine`: what is there, what is not, and that nothing pretends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from profiles.catalogue import catalogue
from profiles.catalogue.catalogue import Catalogue, load
from profiles.hardware.written import parse_hardware
from profiles.store import store
from service.__main__ import main
from service.run import pythons, startup


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """The config.json of gpt-oss-20b; no weights, which a dry run does not open."""
    shape = load().models["gpt-oss-20b"].shape.model_dump()
    rope = {
        "rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096,
        "rope_theta": 150000,
    }  # fmt: skip
    config = {**shape, "model_type": "gpt_oss", "rms_norm_eps": 1e-5, "rope_scaling": rope}
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def on_hopper(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has an H100 as far as detection goes."""
    native = next(p for p in load().profiles if p.title == PROFILE)
    runnable = native.model_copy(update={"status": "untuned"})

    known = Catalogue(load().models, (runnable,))

    monkeypatch.setattr(startup, "visible_hardware", lambda: parse_hardware("h100"))
    monkeypatch.setattr(pythons, "cpu_only_engines", dict)
    monkeypatch.setattr(catalogue, "load", lambda: known)
    monkeypatch.setattr(store, "to_fetch", lambda *_: [])  # it is all there
    monkeypatch.setattr(store, "resolve", lambda *_: checkpoint)


PROFILE = "gpt-oss-20b/native-hopper-mxfp4-tp1-pp1-throughput"


def test_without_a_gpu_there_is_nothing_to_build(
    nano_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["build-engine", "--model-name=nano", f"--cache-path={nano_cache}"]) == 0
    assert "Nothing to build" in capsys.readouterr().out
    assert not (nano_cache / "engines").exists()


@pytest.mark.usefixtures("on_hopper")
def test_a_dry_run_names_what_is_not_there_and_makes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "cache"
    assert main(["build-engine", "--dry-run", f"--cache-path={cache}"]) == 1
    weights, kernels = capsys.readouterr().out.splitlines()
    assert weights.startswith(f"{cache}/engines/weights-")
    assert kernels.startswith(f"{cache}/engines/kernels-sm90-")
    assert weights.endswith(" is not there")
    assert kernels.endswith(" is not there")
    assert not (cache / "engines").exists()


@pytest.mark.usefixtures("on_hopper")
def test_a_dry_run_on_an_empty_cache_says_what_is_fetched_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    artifacts = load().models["gpt-oss-20b"].artifacts
    assert artifacts is not None
    monkeypatch.setattr(store, "to_fetch", lambda *_: list(artifacts.files))
    cache = tmp_path / "cache"
    assert main(["build-engine", "--dry-run", f"--cache-path={cache}"]) == 1
    told = capsys.readouterr().out
    fetched = (
        f"{cache}/models/gpt-oss-20b: 10 files (13.8 GB) are missing and will be downloaded first"
    )
    assert told == f"{fetched}; then {PROFILE} is built, unless it exists already\n"
    assert not (cache / "models").exists()


@pytest.mark.usefixtures("on_hopper")
def test_an_engine_that_cannot_be_built_is_an_error_that_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["build-engine", f"--cache-path={tmp_path / 'cache'}"]) == 1
    assert "no CUDA device is there" in capsys.readouterr().err


def test_packed_only_refuses_what_reads_the_checkpoint_itself(
    nano_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--packed-only", "--model-name=nano", f"--cache-path={nano_cache}"]
    assert main(["build-engine", *arguments]) == 1
    assert "reads the checkpoint itself; nothing is packed" in capsys.readouterr().err
    assert [*nano_cache.glob("models/*/*.safetensors")]


@pytest.mark.usefixtures("on_hopper")
def test_packed_only_deletes_nothing_that_was_not_packed(
    tmp_path: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkpoint / "model.safetensors").write_bytes(b"weights")
    assert main(["build-engine", "--packed-only", f"--cache-path={tmp_path / 'cache'}"]) == 1
    assert "no CUDA device is there" in capsys.readouterr().err
    assert (checkpoint / "model.safetensors").exists()
