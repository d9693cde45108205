"""The catalogue: the shipped one is sound, and a wrong file is named with key and value."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from engines.native.config import NativeConfig
from profiles.catalogue import DATA_DIR, Catalogue, load
from profiles.errors import InvalidCatalogue
from profiles.models import Profile

NANO = "profiles/nano/native-cpu-fp32-tp1-pp1-balanced.yaml"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A catalogue of nano alone, to be spoilt."""
    for name in ("models/nano.yaml", NANO):
        (tmp_path / name).parent.mkdir(parents=True)
        shutil.copy(DATA_DIR / name, tmp_path / name)
    return tmp_path


def spoil(path: Path, **changes: object) -> None:
    content = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**content, **changes}))


def test_the_shipped_catalogue_is_an_honest_first_set(catalogue: Catalogue) -> None:
    kinds = {(p.model.name, p.engine, p.goal) for p in catalogue.profiles}
    for model in ("gpt-oss-20b", "gpt-oss-120b"):
        for engine in ("tensorrt_llm", "vllm", "native"):
            assert {(model, engine, "latency"), (model, engine, "throughput")} <= kinds
    nano = [p for p in catalogue.profiles if p.model.name == "nano"]
    assert [(p.engine, p.gpu, p.precision, p.goal) for p in nano] == [
        ("native", None, "fp32", "balanced")
    ]
    for profile in catalogue.profiles:
        assert profile.source
        if profile.engine == "native" and profile.gpu:  # measured on Hopper, run nowhere else
            is_hopper = profile.gpu.family == "hopper"
            assert profile.status == ("tuned" if is_hopper else "planned")
        else:
            assert profile.status != "tuned"


def test_the_native_engine_knows_every_option_given_to_it(catalogue: Catalogue) -> None:
    native = [p for p in catalogue.profiles if p.engine == "native"]
    assert native
    for profile in native:
        options = {**profile.limits.model_dump(), **profile.options}
        NativeConfig.from_options({"model_dir": "unused", **options})


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
        ({"engine": "vlllm"}, r"engine: Input should be .*got 'vlllm'"),
        ({"gaol": "latency"}, r"gaol: Extra inputs are not permitted \(got 'latency'\)"),
        ({"limits": {"max_model_len": 0}}, r"limits\.max_model_len: .*got 0"),
        ({"source": ""}, r"source: "),
        ({"status": None}, r"status: Input should be"),
        ({"model": "nano"}, r"model: is given by the file's place"),
        ({"parallelism": {"tp": 2}}, r"tp\*pp is 2, but a CPU profile has one device"),
        ({"parallelism": {"tp": 2, "ep": 3}}, r"ep 3 must divide tp 2"),
        ({"gpu": {}}, r"gpu: .*give names, family or min_compute_capability"),
        ({"gpu": {"names": ["h2000"]}}, r"gpu\.names: 'h2000' is not a known GPU .*'h200'"),
        ({"options": {"max_num_seqs": 1}}, r"'max_num_seqs'\] belong under limits"),
        ({"goal": "latency"}, r"its content makes it 'native-cpu-fp32-tp1-pp1-latency\.yaml'"),
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
    content = yaml.safe_load((data / NANO).read_text())
    del content["kv_dtype"]
    (data / NANO).write_text(yaml.safe_dump(content))
    with pytest.raises(InvalidCatalogue, match=r"kv_dtype: Field required$"):
        load(data)


@pytest.mark.parametrize("text", ["engine: [", "- a list", "", "\x00"])
def test_a_file_that_is_not_a_mapping_is_refused(data: Path, text: str) -> None:
    (data / NANO).write_text(text)
    with pytest.raises(InvalidCatalogue, match=r"balanced\.yaml: (is not valid YAML|must be a)"):
        load(data)


def test_two_files_with_the_same_content_are_refused(data: Path) -> None:
    copy = (data / NANO).with_name("other.yaml")
    shutil.copy(data / NANO, copy)
    with pytest.raises(InvalidCatalogue, match="is the same as in"):
        load(data)


def test_a_profile_of_an_unknown_model_is_refused(data: Path) -> None:
    (data / "profiles/nano").rename(data / "profiles/nanno")
    with pytest.raises(InvalidCatalogue, match=r"no models/nanno\.yaml .*did you mean 'nano'"):
        load(data)
