"""Engines by name."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from engines import adding
from engines.adding import command_for
from engines.errors import EngineStartError
from engines.factory import (
    Engines,
    cpu_only_engines,
    create,
    engines_of,
    installed_engines,
)
from engines.factory import about as about_engine
from engines.native import about
from engines.native.config import NativeConfig
from engines.native.cuda_context import begin_contexts
from engines.parts import having
from engines.spec import EngineSpec
from profiles.catalogue.engines import engine_names


def test_every_known_engine_is_usable_or_says_why_not() -> None:
    known = installed_engines()
    of_parts = having("adapter")
    assert list(known) == sorted(["llama_cpp", "native", "tensorrt_llm", "vllm", *of_parts])
    assert known["native"] is None
    for name in ("vllm", "llama_cpp", "tensorrt_llm", *of_parts):
        command = f"tools/install.py {name.replace('_', '-')}`"
        assert str(known[name]).startswith("not installed: run `python3 ")
        assert str(known[name]).endswith(command)


def test_every_engine_that_a_profile_may_name_is_a_folder_here() -> None:
    known = {*installed_engines()}
    assert {*engine_names()} == known - {*having("adapter")}
    for name in known:
        with pytest.raises(EngineStartError, match=f"{name}x.*known engines: .*llama_cpp"):
            about_engine(f"{name}x")


def test_the_command_that_adds_an_engine_is_of_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program = command_for("vllm").split("`")[1].split()
    assert program[0] == "python3"
    assert program[2] == "vllm"
    assert (tmp_path / program[1]).exists()
    monkeypatch.setattr(adding, "_INSTALLER", tmp_path / "tools" / "install.py")
    assert command_for("vllm").endswith(" vllm` in a checkout of Harmonium (docs/engines.md)")
    (tmp_path / "flavour").write_text("cpu\n")
    monkeypatch.setattr(adding, "_FLAVOUR", tmp_path / "flavour")
    assert command_for("llama-cpp") == "use the image of flavour cuda (docs/deploy.md)"


@pytest.mark.heavy
def test_another_python_is_asked_for_its_engines(tmp_path: Path) -> None:
    assert engines_of(Path(sys.executable)) == Engines(installed_engines(), cpu_only_engines())
    with pytest.raises(
        EngineStartError, match=r"/nowhere/python cannot run an engine: .*engines.md"
    ):
        engines_of(Path("/nowhere/python"))
    bare = tmp_path / "python"  # one without this package
    bare.write_text("#!/bin/sh\necho 'No module named engines' >&2; exit 1")
    bare.chmod(0o755)
    with pytest.raises(EngineStartError, match="No module named engines"):
        engines_of(bare)


def test_native_without_torch_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(about, "find_spec", lambda name: None)
    assert installed_engines()["native"] == (
        "not installed: PyTorch is missing (pip install torch)"
    )
    with pytest.raises(EngineStartError, match=r"PyTorch is missing.*usable engines: none"):
        create(EngineSpec("native"))


@pytest.mark.parametrize(("num_devices", "begun"), [(0, []), (2, [2])])
def test_contexts_are_begun_for_gpus_alone(
    num_devices: int, begun: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    monkeypatch.setattr(about, "begin_contexts", counts.append)
    spec = EngineSpec("native", {"dtype": "bfloat16"}, model_dir="/nowhere")
    create(replace(spec, num_devices=num_devices, pipeline_parallel=max(num_devices, 1)))
    assert counts == begun


def test_a_machine_without_a_driver_makes_no_context() -> None:
    thread = begin_contexts(1, driver="libnowhere.so.1")
    thread.join()
    assert not thread.is_alive()


def test_an_unknown_native_option_is_an_error() -> None:
    with pytest.raises(EngineStartError, match="'model_dirr' is unknown; did you mean 'model_dir'"):
        create(EngineSpec("native", {"model_dirr": "/nowhere"}))


def test_an_engine_outside_the_product_is_named_by_its_package() -> None:
    assert create(EngineSpec("tests.fake", {"script": [1]})) is not None
    with pytest.raises(EngineStartError, match=r"'tests\.nothing' is unknown; known engines: "):
        create(EngineSpec("tests.nothing"))


@pytest.mark.heavy
def test_knowing_the_engines_does_not_load_them() -> None:
    check = (
        "import sys, engines.process.supervisor, engines.factory; "
        "engines.factory.installed_engines(); "
        "sys.exit('torch' in sys.modules or 'engines.native.engine' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


REFUSED: dict[str, Any] = {
    "num_devices": 2,
    "pipeline_parallel": 2,
    "expert_parallel": 2,
    "attention_dp": True,
    "precision": "fp8",
    "kv_dtype": "fp16",
    "memory_fraction": 0.0,
}
TAKEN: dict[str, Any] = {
    "options": {"num_threads": 3},
    "limits": {"max_num_seqs": 7},
    "model_dir": "/some/folder",
    "vocabulary_path": "/some/file",
    "artefact_dir": "/some/store",
    "memory_fraction": 0.5,
    "num_devices": 2,
    "pipeline_parallel": 2,
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_native_engine_names_what_it_cannot_do(name: str) -> None:
    spec = EngineSpec("native", model_dir="/nowhere")
    with pytest.raises(EngineStartError, match=name):
        create(replace(spec, **{name: REFUSED[name]}))


def test_the_native_engine_shares_layers_by_expert_on_a_cpu_only() -> None:
    spec = EngineSpec("native", model_dir="/nowhere", tensor_parallel=4, expert_parallel=4)
    config = NativeConfig.from_spec(spec)
    assert (config.tensor_parallel, config.expert_parallel, config.device) == (4, 4, "cpu")
    with pytest.raises(
        EngineStartError, match=r"expert_parallel is 4; on GPUs each expert is split"
    ):
        create(replace(spec, num_devices=4))
    with pytest.raises(EngineStartError, match=r"expert_parallel is 2; use 1 .* or tensor"):
        create(replace(spec, expert_parallel=2))


def test_what_it_can_do_reaches_the_native_engine() -> None:
    config = NativeConfig.from_spec(EngineSpec("native", precision="mxfp4", **TAKEN))
    assert (config.model_dir, config.vocabulary_path) == (Path("/some/folder"), Path("/some/file"))
    assert (config.num_threads, config.max_num_seqs, config.memory_fraction) == (3, 7, 0.5)
    assert (config.device, config.artefact_dir) == ("cuda", Path("/some/store"))
    assert config.num_gpus == 2
    assert config.kv_dtype is None
    assert NativeConfig.from_spec(EngineSpec("native", kv_dtype="fp8", **TAKEN)).kv_dtype == "fp8"
    # No field of the spec is missing here; the process and the factory see to two, and the test
    # above to one.
    named = {*REFUSED, *TAKEN, "engine", "environment", "parts", "tensor_parallel"}
    assert named == {field.name for field in fields(EngineSpec)}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_gpus": 2, "device": "cpu"}, "device is 'cpu'"),
        ({"num_gpus": 0}, "num_gpus is 0"),
        ({"num_gpus": 2, "tune": True}, "tune is True"),
    ],
)
def test_what_several_gpus_cannot_do_is_named(options: dict[str, Any], named: str) -> None:
    given = {"model_dir": "/nowhere", "device": "cuda", **options}
    with pytest.raises(EngineStartError, match=named):
        NativeConfig.from_options(given)


def test_an_engine_that_does_not_know_a_field_refuses_it() -> None:
    with pytest.raises(EngineStartError, match=r"fake' cannot be started with kv_dtype 'fp8'"):
        create(EngineSpec("tests.fake", {"script": [1]}, kv_dtype="fp8"))
