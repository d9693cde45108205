"""NIM_MODEL_PATH and NIM_QUANTIZE: what the files hold decides, in every command."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engines.parts import folders
from profiles.catalogue.catalogue import Catalogue, load
from profiles.errors import InvalidConstraint, ModelStoreError
from profiles.hardware.written import parse_hardware
from service.__main__ import main
from service.run import startup
from tests.profiles.checkpoints.test_gguf import HEAD, written
from tests.profiles.checkpoints.test_stored import tensors_of, write
from tests.service.run.conftest import launch

pytestmark = pytest.mark.usefixtures("machine", "cache")


@pytest.fixture(scope="module")
def shape() -> dict[str, Any]:
    known: Catalogue = load()
    return known.models["gpt-oss-20b"].shape.model_dump()


@pytest.fixture
def tuned(tmp_path: Path, shape: dict[str, Any]) -> Path:
    """A merged fine-tune of gpt-oss-20b in BF16."""
    return write(tmp_path / "ft", shape, tensors_of(shape)).place


def test_a_start_serves_what_the_files_hold(tuned: Path) -> None:
    for settings in ({}, {"model_name": "gpt-oss-20b"}):
        spec = launch(model_path=tuned, **settings).spec
        assert (spec.precision, spec.options.get("quantize")) == ("bf16", None)
    spec = launch(model_path=tuned, quantize="mxfp4").spec
    assert (spec.engine, spec.precision, spec.options["quantize"]) == ("native", "mxfp4", "mxfp4")
    assert spec.artefact_dir is not None  # where the rounded weights are kept


def test_the_profile_names_the_precision_in_the_log(
    tuned: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    startup.tell(launch(model_path=tuned))
    assert "in the shape of gpt-oss-20b: 20.9 billion weights; experts in bf16. Ser" in caplog.text
    startup.tell(launch(model_path=tuned, quantize="mxfp4"))
    assert "experts rounded to MXFP4 while loading (NIM_QUANTIZE=mxfp4)" in caplog.text


def test_what_cannot_be_rounded_is_refused_and_what_needs_it_not_is_served(
    tmp_path: Path, shape: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with pytest.raises(InvalidConstraint, match="NIM_QUANTIZE is set without NIM_MODEL_PATH"):
        launch(quantize="mxfp4")
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(written(HEAD | {"gpt-oss.vocab_size": 201_088}))
    with pytest.raises(InvalidConstraint, match=r"is a GGUF model, which llama\.cpp takes as it"):
        launch(model_path=gguf, quantize="mxfp4")
    packed = write(tmp_path / "mx", shape, tensors_of(shape, "MXFP4")).place
    spec = launch(model_path=packed, quantize="mxfp4").spec
    assert (spec.precision, spec.options.get("quantize")) == ("mxfp4", None)
    assert (
        "NIM_QUANTIZE has no effect: the checkpoint's experts are in MXFP4 already" in caplog.text
    )


@pytest.fixture
def asked(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """What a command prints as JSON."""

    def ask(*command: str) -> Any:
        main([*command, "--json"])
        return json.loads(capsys.readouterr().out)

    return ask


def test_profiles_go_by_the_files_too(
    tuned: Path, monkeypatch: pytest.MonkeyPatch, asked: Callable[..., Any]
) -> None:
    monkeypatch.setenv("NIM_MODEL_PATH", str(tuned))
    chosen = asked("profiles", "--hardware", "h100")
    first = chosen["profiles"][0]
    assert (chosen["selected"], first["precision"]) == (first["id"], "bf16")
    assert "NIM_QUANTIZE=mxfp4" in asked("profiles", "--hardware", "rtx4090")["remedy"]


@pytest.mark.skipif("plan" not in folders(), reason="parts/plan was removed")
def test_the_plan_goes_by_the_files_too(
    tuned: Path, monkeypatch: pytest.MonkeyPatch, asked: Callable[..., Any]
) -> None:
    monkeypatch.setenv("NIM_MODEL_PATH", str(tuned))
    by_name = asked("plan", "gpt-oss-20b", "--gpu", "h100x1", "--users", "8")
    monkeypatch.delenv("NIM_MODEL_PATH")
    by_path = asked("plan", str(tuned), "--gpu", "h100x1", "--users", "8")
    assert by_path == by_name
    published = asked("plan", "gpt-oss-20b", "--gpu", "h100x1", "--users", "8")
    slower, faster = (plan["options"][0]["tokens_per_s_per_user"] for plan in (by_path, published))
    assert slower < faster / 1.5
    monkeypatch.setenv("NIM_QUANTIZE", "mxfp4")
    rounded = asked("plan", str(tuned), "--gpu", "h100x1", "--users", "8")
    assert rounded["options"][0]["tokens_per_s_per_user"] == faster


def test_another_format_is_refused_at_the_start(tmp_path: Path, shape: dict[str, Any]) -> None:
    config = shape | {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}
    opened = write(tmp_path / "nv", config, tensors_of(shape))
    with pytest.raises(
        ModelStoreError, match=r"quantized as NVFP4 \(modelopt\); this server reads"
    ):
        launch(model_path=opened.place)


def test_a_machine_on_which_rounding_alone_fits_serves_it(
    tuned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup, "visible_hardware", lambda: parse_hardware("rtx4090"))
    chosen = launch(model_path=tuned, quantize="mxfp4").selection.chosen
    assert chosen.profile.name == "native-ada-mxfp4-tp1-pp1-balanced-rounded"
