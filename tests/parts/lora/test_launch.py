"""What a start does with NIM_PEFT_SOURCE, and how vLLM gets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engines.spec import EngineSpec
from engines.vllm.arguments import arguments_of
from parts.lora.launch import LAUNCH
from parts.lora.native.kept import AdapterLimits
from profiles.catalogue import catalogue
from profiles.errors import InvalidConstraint
from service.settings.settings import Settings
from tests.engines.vllm.conftest import SURFACE
from tests.parts.lora.conftest import write_plain

EXPERTS = "base_model.model.model.layers.0.mlp.experts"
PROFILES = catalogue.load().profiles


def profile_of(engine: str) -> Any:
    return next(each for each in PROFILES if each.engine == engine)


def settings(source: Path, **changes: Any) -> Settings:
    given: dict[str, Any] = {"peft_source": source, **changes}
    return Settings(**given)


def with_options(given: Settings, spec: EngineSpec) -> EngineSpec:
    return LAUNCH.with_options(spec, None, None, given)  # type: ignore[arg-type]


def test_vllm_gets_the_limits_by_its_own_names(source: Path) -> None:
    given = settings(source, max_gpu_loras=4, max_cpu_loras=2, max_lora_rank=48)
    LAUNCH.check(given, profile_of("vllm"), 1)
    spec = with_options(given, EngineSpec("vllm", model_dir="/model"))
    engine = arguments_of(spec).engine
    wanted = {"enable_lora": True, "max_loras": 4, "max_cpu_loras": 4, "max_lora_rank": 64}
    assert wanted.items() <= engine.items()
    assert engine.keys() <= {*SURFACE["AsyncEngineArgs"]}
    own = EngineSpec("vllm", model_dir="/model", options={"max_loras": 1})
    assert with_options(given, own).options["max_loras"] == 1  # the profile's
    assert with_options(Settings(), spec) == spec


@pytest.mark.parametrize("engine", ["llama_cpp", "tensorrt_llm"])
def test_other_engines_are_refused_with_the_remedy(source: Path, engine: str) -> None:
    with pytest.raises(InvalidConstraint, match=f"{engine}.*native profile.*harmonium merge"):
        LAUNCH.check(settings(source), profile_of(engine), 1)


def test_vllm_on_a_cpu_is_refused(source: Path) -> None:
    on_cpu = next(each for each in PROFILES if each.engine == "vllm" and each.gpu is None)
    with pytest.raises(InvalidConstraint, match=r"vLLM on a CPU.*choose a native profile"):
        LAUNCH.check(settings(source), on_cpu, 1)


def fitting(**wanted: Any) -> Any:
    """A native profile on a CPU or a GPU, with or without tensor parallelism."""
    return next(
        each for each in PROFILES
        if each.engine == "native" and (each.gpu is None) == (wanted["on"] == "cpu")
        and (each.parallelism.tp > 1) == wanted["splits"]
    )  # fmt: skip


def test_the_native_engine_gets_the_limits_in_its_part(source: Path) -> None:
    given = settings(source, max_gpu_loras=4, max_cpu_loras=2, max_lora_rank=48)
    LAUNCH.check(given, fitting(on="cpu", splits=False), 1)
    spec = with_options(given, EngineSpec("native", model_dir="/model"))
    assert spec.parts == {"lora": {"max_used": 4, "max_kept": 4, "max_rank": 48}}
    assert spec.options == {}
    AdapterLimits(**spec.parts["lora"])


def test_the_native_engine_takes_them_on_a_gpu_but_not_split(source: Path) -> None:
    LAUNCH.check(settings(source), fitting(on="gpu", splits=False), 1)
    said = r"native.*without tensor parallelism only.*`harmonium merge`.*with tp 1"
    with pytest.raises(InvalidConstraint, match=said):
        LAUNCH.check(settings(source), fitting(on="gpu", splits=True), 1)


def test_the_native_engine_takes_experts_on_cpus_alone(source: Path) -> None:
    write_plain(source / "experts", EXPERTS)
    LAUNCH.check(settings(source), fitting(on="cpu", splits=False), 1)
    LAUNCH.check(settings(source), fitting(on="cpu", splits=True), 1)
    said = r"experts/adapter_model.safetensors: .*mlp.experts is no projection of attention.*merge"
    with pytest.raises(InvalidConstraint, match=said):
        LAUNCH.check(settings(source), fitting(on="gpu", splits=False), 1)


def test_no_part_of_the_native_engine_takes_other_modules(source: Path) -> None:
    write_plain(source / "head", "base_model.model.lm_head")
    with pytest.raises(InvalidConstraint, match=r"lm_head .* o_proj and experts only: merge"):
        LAUNCH.check(settings(source), fitting(on="cpu", splits=False), 1)


def test_an_adapter_is_no_folder_of_adapters(source: Path) -> None:
    said = "french: is an adapter; name the folder above it"
    with pytest.raises(InvalidConstraint, match=said):
        LAUNCH.check(settings(source / "french"), fitting(on="cpu", splits=False), 1)


@pytest.mark.parametrize("is_empty", [False, True])
def test_a_start_tells_what_it_found(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, is_empty: bool
) -> None:
    caplog.set_level("INFO", "harmonium.lora")
    LAUNCH.check(settings(tmp_path if is_empty else source), fitting(on="cpu", splits=False), 1)
    wanted = "no adapter_config.json in a subfolder" if is_empty else "french, law"
    assert f"LoRA adapters: {wanted}" in caplog.messages


def no_folder(source: Path) -> None:
    for path in [*source.iterdir()]:
        path.rename(source.parent / path.name)
    source.rmdir()


def pickled(source: Path) -> None:
    (source / "law" / "adapter_model.safetensors").rename(source / "law" / "adapter_model.bin")


def config(**changes: Any) -> Callable[[Path], None]:
    return lambda source: (write_plain(source / "law", **changes), None)[1]


def cut(source: Path) -> None:
    path = source / "law" / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-9])


def text(source: Path) -> None:
    (source / "law" / "adapter_model.safetensors").write_bytes(b"\xff" * 64)


def no_json(source: Path) -> None:
    (source / "law" / "adapter_config.json").write_text(json.dumps([1]))


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (no_folder, "adapters: No such file or directory; name a folder of adapters"),
        (pickled, r"law/adapter_model.bin: is a pickle, .* safe_serialization=True"),
        (config(use_dora=True), r"law/adapter_config.json: use_dora is True, .*merge_and_unload"),
        (config(peft_type="IA3"), "law/adapter_config.json: peft_type is 'IA3'; only LORA"),
        (config(rank=64), r"law/adapter_model.safetensors: .*q_proj.lora_A.weight has rank 64; "),
        (cut, r"law/adapter_model.safetensors: has \d+ bytes of \d+; copy it again"),
        (text, r"law/adapter_model.safetensors: is not safetensors"),
        (no_json, r"law/adapter_config.json: peft_type is missing"),
    ],
)
def test_a_folder_that_cannot_be_served_ends_the_start(
    source: Path, break_it: Callable[[Path], None], said: str
) -> None:
    break_it(source)
    with pytest.raises(InvalidConstraint, match=f"NIM_PEFT_SOURCE: .*{said}"):
        LAUNCH.check(settings(source), profile_of("vllm"), 1)


def test_vllm_decides_on_the_targets(source: Path) -> None:
    write_plain(source / "experts", EXPERTS)
    LAUNCH.check(settings(source), profile_of("vllm"), 1)
