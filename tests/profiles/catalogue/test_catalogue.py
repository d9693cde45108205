"""The catalogue: the shipped one is sound, and a wrong file is named with key and value."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from engines.llama_cpp.config import LlamaCppConfig
from engines.native.config import NativeConfig
from engines.spec import EngineSpec
from engines.vllm.arguments import arguments_of
from profiles.catalogue.catalogue import DATA_DIR, Catalogue, load
from profiles.catalogue.models import Goal, GpuRequirement, Profile
from profiles.errors import InvalidCatalogue
from service.run.startup import spec_of

NANO = "profiles/native.yaml"
ONE: dict[str, Any] = {
    "bases": {
        "cpu": {"precision": "fp32", "kv_dtype": "fp32", "status": "untuned", "note": "By us."},
        "gpu": {"base": "cpu", "gpu": {"family": "hopper"}, "options": {"a": 1, "b": {"c": 2}}},
    },
    "profiles": [
        {
            "base": ["cpu"],
            "models": ["nano"],
            "goal": "balanced",
            "limits": {"max_model_len": 4096, "max_num_seqs": 32, "max_num_batched_tokens": 64},
            "source": "Written for it.",
        },
        {
            "base": ["gpu"],
            "models": ["nano"],
            "tp": [1, 2],
            "ep": "tp",
            "goal": "latency",
            "limits": {"max_model_len": 4096, "max_num_seqs": 8, "max_num_batched_tokens": 64},
            "options": {"a": None, "b": {"d": 3}},
            "source": "conc{max_num_seqs} on {tp}.",
        },
    ],
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A catalogue of nano alone, to be spoilt."""
    for folder in ("models", "profiles"):
        (tmp_path / folder).mkdir()
    shutil.copy(DATA_DIR / "models/nano.yaml", tmp_path / "models/nano.yaml")
    (tmp_path / NANO).write_text(yaml.safe_dump(ONE))
    return tmp_path


def spoil(path: Path, **changes: object) -> None:
    """Change the first profile."""
    content = yaml.safe_load(path.read_text())
    content["profiles"][0] |= changes
    path.write_text(yaml.safe_dump(content))


def test_a_base_is_merged_with_what_differs(data: Path) -> None:
    cpu, one, two = load(data).profiles
    assert (cpu.name, cpu.gpu) == ("native-cpu-fp32-tp1-pp1-balanced", None)
    assert cpu.source == "Written for it. By us."
    assert [p.parallelism.tp for p in (one, two)] == [1, 2]
    assert two.parallelism.ep == 2
    assert two.options == {"b": {"c": 2, "d": 3}}  # null took `a` away
    assert two.source == "conc8 on 2. By us."
    assert two.gpu == GpuRequirement(family="hopper")


def test_the_shipped_catalogue_is_an_honest_set(catalogue: Catalogue) -> None:
    kinds = {(p.model.name, p.engine, p.goal) for p in catalogue.profiles}
    for model in ("gpt-oss-20b", "gpt-oss-120b"):
        for engine in ("tensorrt_llm", "vllm", "native", "llama_cpp"):
            assert {(model, engine, "latency"), (model, engine, "throughput")} <= kinds
    nano = [p for p in catalogue.profiles if p.model.name == "nano"]
    assert [(p.engine, p.gpu_label, p.precision, p.parallelism.tp, p.goal) for p in nano] == [
        *(("native", "cpu", "fp32", tp, "balanced") for tp in (1, 2, 4)),
        *(("native", "hopper", "bf16", tp, "balanced") for tp in (1, 2)),
        ("vllm", "cpu", "fp32", 1, "balanced"),
    ]
    for profile in catalogue.profiles:
        assert profile.source
        is_measured = profile.engine == "native" and profile.gpu_label in ("h100", "h200")
        assert (profile.status == "tuned") == is_measured  # run nowhere else
        if profile.status in ("tuned", "published"):  # for one board, not for its kin
            assert profile.gpu is not None
            assert len(profile.gpu.names) == 1


def test_only_throughput_may_stream_many_tokens_at_a_time(catalogue: Catalogue) -> None:
    for profile in catalogue.profiles:
        if profile.goal != "throughput":
            assert "stream_interval" not in profile.options, profile.title


def test_every_gpu_from_ampere_on_has_a_profile_for_every_goal(catalogue: Catalogue) -> None:
    generic = {
        (p.model.name, p.goal)
        for p in catalogue.profiles
        if p.gpu and not p.gpu.names and p.gpu.min_compute_capability == (8, 0)
    }
    models, goals = ("gpt-oss-20b", "gpt-oss-120b"), get_args(Goal)
    assert generic == set(product(models, goals))


def test_a_draft_head_is_an_option_of_the_engine_too(catalogue: Catalogue) -> None:
    drafting = [p for p in catalogue.profiles if p.draft]
    assert {p.engine for p in drafting} == {"vllm", "tensorrt_llm"}
    for profile in drafting:
        assert profile.draft in str(profile.options)
        assert profile.name.endswith("-eagle3")


def test_every_engine_with_an_adapter_understands_its_profiles(catalogue: Catalogue) -> None:
    read: dict[str, Callable[[EngineSpec], object]] = {
        "native": NativeConfig.from_spec,
        "llama_cpp": LlamaCppConfig.from_spec,
        "vllm": arguments_of,
    }
    seen = set()
    for profile in catalogue.profiles:
        if profile.engine in read:
            seen.add(profile.engine)
            spec = spec_of(profile, profile.limits, Path("unused"))
            read[profile.engine](spec)  # raises EngineStartError naming what it does not know
    assert seen == read.keys()


def test_nano_has_the_shape_of_its_checkpoint(catalogue: Catalogue) -> None:
    config = json.loads((DATA_DIR / "nano" / "config.json").read_text())
    shape = catalogue.models["nano"].shape.model_dump()
    assert shape == {key: config[key] for key in shape}


def test_ids_cover_what_runs_and_nothing_else(catalogue: Catalogue) -> None:
    profile = catalogue.profiles[0]
    assert len(profile.id) == 64
    assert int(profile.id, 16)

    def changed(**update: object) -> Profile:
        return Profile.model_validate({**dict(profile), **update})

    assert changed().id == profile.id
    assert changed(status="tuned", source="measured").id == profile.id
    assert changed(options={"stream_interval": 1}).id != profile.id
    assert changed(memory_fraction=0.5).id != profile.id


def test_a_name_tells_what_a_profile_is(catalogue: Catalogue) -> None:
    names = {profile.title for profile in catalogue.profiles}
    assert len(names) == len(catalogue.profiles)
    assert "gpt-oss-120b/tensorrt_llm-h200-mxfp4-tp8-pp1-latency" in names
    assert "gpt-oss-20b/vllm-hopper-mxfp4-tp2-pp1-balanced" in names


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"base": ["cpuu"]}, r"base: 'cpuu' is not a base \(did you mean 'cpu'"),
        ({"gaol": "latency"}, r"gaol: Extra inputs are not permitted \(got 'latency'\)"),
        ({"limits": {"max_model_len": 0}}, r"limits\.max_model_len: .*got 0"),
        ({"source": "", "note": None}, r"source: String should have at least 1"),
        ({"status": "great"}, r"status: Input should be"),
        ({"models": ["nanno"]}, r"no models/nanno\.yaml .*did you mean 'nano'"),
        ({"source": "{conc}"}, r"source: \{'conc'\} is not a known placeholder"),
        ({"tp": [0]}, r"profiles\.0\.tp\.0: Input should be greater than 0 \(got 0\)"),
        ({"parallelism": {"pp": 2}}, r"pp is 2, but a CPU profile has one device"),
        ({"parallelism": {"tp": 2, "ep": 3}}, r"ep 3 must divide tp 2"),
        ({"gpu": {}}, r"gpu: .*give names, family or min_compute_capability"),
        ({"gpu": {"names": ["h2000"]}}, r"gpu\.names: 'h2000' is not a known GPU .*'h200'"),
        ({"options": {"max_num_seqs": 1}}, r"'max_num_seqs'\] belong under limits"),
    ],
)
def test_a_wrong_profile_is_named_with_key_and_value(
    data: Path, changes: dict[str, object], complaint: str
) -> None:
    spoil(data / NANO, **changes)
    with pytest.raises(InvalidCatalogue, match=complaint) as caught:
        load(data)
    assert str(data / NANO) in str(caught.value)


def test_a_context_longer_than_the_model_is_refused(data: Path) -> None:
    limits = {"max_model_len": 10**6, "max_num_seqs": 1, "max_num_batched_tokens": 1}
    spoil(data / NANO, limits=limits)
    with pytest.raises(InvalidCatalogue, match="max_model_len 1000000 exceeds nano's"):
        load(data)


def test_a_missing_key_is_named(data: Path) -> None:
    spoil(data / NANO, kv_dtype=None)
    with pytest.raises(InvalidCatalogue, match=r"kv_dtype: Field required$"):
        load(data)


@pytest.mark.parametrize("text", ["engine: [", "- a list", "", "\x00"])
def test_a_file_that_is_not_a_mapping_is_refused(data: Path, text: str) -> None:
    (data / NANO).write_text(text)
    with pytest.raises(InvalidCatalogue, match=r"native\.yaml: (is not valid YAML|must be a)"):
        load(data)


def test_the_same_profile_twice_is_refused(data: Path) -> None:
    spoil(data / NANO, models=["nano", "nano"])
    with pytest.raises(InvalidCatalogue, match="is the same as"):
        load(data)


@pytest.mark.parametrize(
    ("bases", "complaint"),
    [
        ({"cpu": {"base": "gpu"}}, "base: 'cpu' is its own base"),
        ({"more": {}}, "bases: 'more' is the base of nothing; remove it"),
    ],
)
def test_a_wrong_base_is_named(data: Path, bases: dict[str, Any], complaint: str) -> None:
    (data / NANO).write_text(yaml.safe_dump({**ONE, "bases": ONE["bases"] | bases}))
    with pytest.raises(InvalidCatalogue, match=complaint):
        load(data)


def test_a_file_of_an_unknown_engine_is_refused(data: Path) -> None:
    (data / NANO).rename(data / "profiles/nativ.yaml")
    with pytest.raises(InvalidCatalogue, match=r"'nativ' is not an engine .*did you mean 'native'"):
        load(data)
