"""Every field of settings and profiles reaches the engine, the store or the runtime."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from engines.factory import about
from engines.fleet import Fleet
from engines.process.supervisor import EngineSupervisor
from profiles.catalogue.models import GpuRequirement, Limits, Parallelism, Profile
from profiles.errors import InvalidConstraint, NoCompatibleProfile
from service.run.startup import environments_of, prepare, spec_of
from service.run.wiring import build_runtime
from service.settings.settings import Settings, load
from tests.service.run.conftest import launch

pytestmark = pytest.mark.usefixtures("machine", "cache")

REACHES: dict[str, tuple[Any, str]] = {  # another value, and the field of the spec it changes
    "engine": ("vllm", "engine"),
    "precision": ("bf16", "precision"),
    "gpu": (GpuRequirement(family="hopper"), "num_devices"),
    "limits": (Limits(max_model_len=4096, max_num_seqs=8, max_num_batched_tokens=7), "limits"),
    "kv_dtype": ("fp8", "kv_dtype"),
    "memory_fraction": (0.5, "memory_fraction"),
    "options": ({"dtype": "bfloat16"}, "options"),
    "environment": ({"A": "1"}, "environment"),
}
# They say when to take the profile, why, how often, and where the head is from (test_drafts.py).
NANO = "native-cpu-fp32-tp1-pp1-balanced"
ONLY_CHOOSE = {"goal", "status", "source", "replicas", "draft", "draft_revision"}


def test_the_native_engine_is_given_the_vocabulary(cache: Path) -> None:
    path = Path(launch(model_name="nano").spec.vocabulary_path or "")
    assert cache in path.parents
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    # As published for o200k_base.
    assert digest == "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"


def test_without_a_place_for_the_vocabulary_the_service_starts_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    launched = launch(model_name="nano", cache_path=tmp_path / "file")
    assert launched.spec.vocabulary_path is None
    assert "structured outputs will be refused" in caplog.text


def test_the_context_length_reaches_the_engine() -> None:
    assert launch(model_name="nano", max_model_len=200).spec.limits["max_model_len"] == 200
    assert launch(model_name="nano").spec.limits["max_model_len"] > 200


def test_the_share_of_the_memory_reaches_the_engine_and_the_choice_of_a_profile() -> None:
    assert launch(model_name="gpt-oss-20b").spec.memory_fraction == 0.9
    assert launch(model_name="gpt-oss-20b", kvcache_percent=0.4).spec.memory_fraction == 0.4
    with pytest.raises(NoCompatibleProfile, match="found 60"):
        launch(model_name="gpt-oss-120b", kvcache_percent=0.4)


def test_the_type_of_the_kv_cache_reaches_the_engine() -> None:
    wish = {"model_name": "gpt-oss-20b", "tags_selector": "engine=native"}
    assert launch(**wish).spec.kv_dtype == "bf16"
    assert launch(**wish, kv_cache_dtype="auto").spec.kv_dtype == "bf16"
    assert launch(**wish, kv_cache_dtype="fp8").spec.kv_dtype == "fp8"
    with pytest.raises(InvalidConstraint, match=r"NIM_KV_CACHE_DTYPE is fp8, and .* llama_cpp"):
        launch(model_name="gpt-oss-20b", tags_selector="engine=llama_cpp", kv_cache_dtype="fp8")


def test_the_length_of_the_queue_reaches_the_engine() -> None:
    spec = launch(model_name="gpt-oss-20b", max_queue_length=17).spec
    assert spec.options["max_num_waiting"] == 17
    assert "max_num_waiting" not in launch(model_name="gpt-oss-20b").spec.options


def test_the_longest_gap_reaches_the_engine_and_zero_is_none() -> None:
    wish = {"model_name": "gpt-oss-20b", "tags_selector": "engine=native"}
    found = {
        given: launch(**wish, profile_goal=goal, max_token_gap_ms=given).spec.options
        for given, goal in ((None, "latency"), (35, "throughput"), (0, "balanced"))
    }
    assert [each.get("max_token_gap_ms") for each in found.values()] == [20, 35, None]
    assert "max_token_gap_ms" not in launch(**wish, profile_goal="throughput").spec.options
    with pytest.raises(InvalidConstraint, match=r"NIM_MAX_TOKEN_GAP_MS is set, and .* engine vllm"):
        launch(model_name="gpt-oss-20b", tags_selector="engine=vllm", max_token_gap_ms=35)


@pytest.mark.parametrize("name", REACHES)
def test_every_field_of_a_profile_reaches_the_engine(name: str) -> None:
    # The model is the folder; how it is spread is the next test.
    assert {*REACHES, *ONLY_CHOOSE, "model", "parallelism"} == set(Profile.model_fields)
    wish = {"model_name": "nano", "model_profile": "native-cpu-fp32-tp1-pp1-balanced"}
    profile = launch(**wish).selection.chosen.profile
    value, target = REACHES[name]
    plain, changed = (
        spec_of(each, each.limits, Path("folder"))
        for each in (profile, profile.model_copy(update={name: value}))
    )
    names = [f.name for f in fields(plain) if getattr(plain, f.name) != getattr(changed, f.name)]
    assert names == [target]


def test_what_a_profile_sets_reaches_each_process_beside_its_gpus() -> None:
    launched = launch(model_name="gpt-oss-20b")
    spec = replace(launched.spec, engine="vllm", environment={"A": "1", "VLLM_NO_USAGE_STATS": "0"})
    devices = ({"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"})
    environments = environments_of(replace(launched, spec=spec, devices=devices))
    assert [each["CUDA_VISIBLE_DEVICES"] for each in environments] == ["0", "1"]
    assert all(each["A"] == "1" and each["VLLM_NO_USAGE_STATS"] == "0" for each in environments)
    library = about("vllm").environment
    assert library["VLLM_NO_USAGE_STATS"] != "0"
    assert all(library.keys() <= each.keys() for each in environments)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("tp", "tensor_parallel"),
        ("pp", "pipeline_parallel"),
        ("ep", "expert_parallel"),
        ("attention_dp", "attention_dp"),
    ],
)
def test_how_a_profile_is_spread_over_gpus_reaches_the_engine(name: str, target: str) -> None:
    profile = launch(model_name="nano").selection.chosen.profile
    assert set(Parallelism.model_fields) == {"tp", "pp", "ep", "attention_dp"}
    changes: dict[str, Any] = {name: 2}
    parallelism = Parallelism.model_construct(**changes)
    spread = profile.model_copy(update={"parallelism": parallelism, "gpu": REACHES["gpu"][0]})
    spec = spec_of(spread, spread.limits, Path("folder"))
    assert getattr(spec, target) == 2
    assert spec.num_devices == (2 if name in ("tp", "pp") else 1)


def test_the_limits_and_keys_reach_the_runtime() -> None:
    given = {"max_body_bytes": 2048, "api_keys": "one-configured-key"}
    settings = load(
        given
        | {"cors_allow_origins": "https://chat.example"}
        | {"read_without_key": "metrics, models", "allow_engine_kill": True}
    )
    launched = prepare(settings)
    client = EngineSupervisor(launched.spec).client()
    runtime = build_runtime(settings, launched, NoHistory(), Fleet([client]))
    assert runtime.limits.max_body_bytes == 2048
    assert runtime.authenticator is not None
    assert runtime.cors_origins == ("https://chat.example",)
    assert runtime.compared_origins == runtime.cors_origins
    assert runtime.read_without_key == ("metrics", "models")
    assert runtime.kill_engine is not None
    assert runtime.model.license == "Apache-2.0"
    assert runtime.model.profile is not None
    assert runtime.model.profile.reason == launched.selection.reason
    open_runtime = build_runtime(load(), launched, NoHistory(), Fleet([client]))
    assert open_runtime.authenticator is None
    assert open_runtime.kill_engine is not None  # only this machine reaches it
    for closed in ({"allow_engine_kill": False}, {"auth": "off"}, {"api_keys": "a-configured-key"}):
        closed_runtime = build_runtime(load(closed), launched, NoHistory(), Fleet([client]))
        assert closed_runtime.kill_engine is None


# By setting: a value that is not the default, and the policy and its field that get it.
POLICIES: dict[str, tuple[Any, str, str]] = {
    "max_queue_wait_s": (7.25, "Bounds", "max_wait_s"),
    "request_timeout_s": (77.5, "Bounds", "timeout_s"),
    "min_priority": (-3, "Bounds", "min_priority"),
    "rate_limit_requests": (61, "PrincipalLimits", "requests_per_min"),
    "rate_limit_tokens": (62_000, "PrincipalLimits", "tokens_per_min"),
    "rate_limit_concurrent": (63, "PrincipalLimits", "max_concurrent"),
}
DEFAULTS = {name: field.default for name, field in Settings.model_fields.items()}


class NoHistory:
    """Of an engine that was never started again, whose files are here."""

    num_restarts = 0
    download = (0, 0)
    is_starting = False
    start_s = 0.0

    def kill(self) -> int:
        return 0


def test_every_policy_reaches_the_runtime() -> None:
    given = {name: value for name, (value, *_) in POLICIES.items()}
    assert given == {name: value for name, value in given.items() if value != DEFAULTS[name]}
    settings = load({**given, "metrics_tenants": "a, b"})
    launched = prepare(settings)
    client = EngineSupervisor(launched.spec).client()
    runtime = build_runtime(settings, launched, NoHistory(), Fleet([client]))
    found = dict(fields_below(runtime))
    assert {name: found[kind, field] for name, (_, kind, field) in POLICIES.items()} == given
    assert found["Metrics", "_tenants"] == {"a", "b"}


def fields_below(whole: object) -> Iterator[tuple[tuple[str, str], object]]:
    """Every attribute of our objects that an object holds, by the object's class and its name."""
    seen, waiting = set[int](), [whole]
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, list | tuple):
            waiting += one
        elif type(one).__module__.startswith(("service.", "auth.", "engines.")):
            slots = [name for cls in type(one).__mro__ for name in getattr(cls, "__slots__", ())]
            names = [*slots, *getattr(one, "__dict__", ())]
            values = {name: getattr(one, name) for name in names if hasattr(one, name)}
            yield from (((type(one).__name__, name), value) for name, value in values.items())
            waiting += values.values()
