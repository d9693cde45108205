"""Settings → what is launched: every setting that chooses has its effect here."""

from __future__ import annotations

import hashlib
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from engines.errors import EngineStartError
from engines.factory import NO_ADAPTER, Engines
from engines.fleet import Fleet
from engines.process.supervisor import EngineSupervisor
from profiles import catalogue, store
from profiles.errors import InvalidConstraint, ModelStoreError, NoCompatibleProfile
from profiles.machine import GB
from profiles.models import ArtifactFile, GpuRequirement, Limits, Parallelism, Profile
from profiles.written import parse_hardware
from service.cli import serve
from service.run import startup
from service.run.startup import (
    Launch,
    engines_here,
    fallback,
    obtain,
    prepare,
    python_of,
    spec_of,
    tell,
)
from service.run.wiring import build_runtime
from service.settings.settings import load
from service.telemetry import logs
from tests.profiles.hub import serving
from tests.profiles.test_store import shard


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, Path | None]]:
    """One H200 with every engine installed; the folders that are asked for are noted."""
    asked: list[tuple[Path, Path | None]] = []

    def resolve(_profile: Any, cache_dir: Path, model_path: Path | None) -> Path:
        asked.append((cache_dir, model_path))
        return model_path or cache_dir / "models"

    engines = dict.fromkeys(("native", "vllm", "tensorrt_llm", "llama_cpp"))
    monkeypatch.setattr(startup, "detect", lambda: parse_hardware("h200"))
    monkeypatch.setattr(startup, "installed_engines", lambda: engines)
    monkeypatch.setattr(startup, "cpu_only_engines", dict)
    monkeypatch.setattr(store, "resolve", resolve)
    monkeypatch.setattr(store, "to_fetch", lambda *_: [])
    return asked


@pytest.fixture(scope="session")
def default_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests: writing the vocabulary takes half a second."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def cache(default_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NIM_CACHE_PATH", str(default_cache))
    return default_cache


def launch(**settings: Any) -> Launch:
    return prepare(load(settings))


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
    assert "guided decoding will be refused" in caplog.text


@pytest.mark.parametrize(
    ("hardware", "engines", "said"),
    [
        (
            "b200x8",
            {"native": None, **dict.fromkeys(("llama_cpp", "vllm", "tensorrt_llm"), NO_ADAPTER)},
            "8 x NVIDIA B200 stays idle: nano runs on the CPU. Missing: engine llama_cpp is "
            "not installed: the adapter is not part of this release; engine tensorrt_llm is "
            "not installed: the adapter is not part of this release; engine vllm is not "
            "installed: the adapter is not part of this release. No command mends that in this "
            "release; `harmonium profiles --all-engines` shows what would serve then.",
        ),
        (
            "b200",
            {"native": None, "vllm": "not installed: pip install 'harmonium[vllm]'"},
            "Missing: engine llama_cpp is not installed: there is no adapter for it; "
            "engine tensorrt_llm is not installed: there is no adapter for it; engine "
            "vllm is not installed: pip install 'harmonium[vllm]'.",
        ),
    ],
)
def test_a_gpu_that_stays_idle_is_a_warning(
    hardware: str,
    engines: dict[str, str | None],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(startup, "detect", lambda: parse_hardware(hardware))
    monkeypatch.setattr(startup, "installed_engines", lambda: engines)
    tell(launch())
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(warnings) == 1
    assert warnings[0].endswith(said)


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [
        (None, []),
        (3, ["5 x NVIDIA H200 (GPU 3-7) stay idle: NIM_REPLICAS is 3; unset it to use all"]),
        (8, []),
    ],
)
def test_replicas_have_gpus_of_their_own_and_idle_ones_are_told(
    replicas: int | None,
    expected: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    machine = parse_hardware("h200x8")
    gpus = tuple(replace(gpu, uuid=f"GPU-{gpu.index}") for gpu in machine.gpus)
    monkeypatch.setattr(startup, "detect", lambda: replace(machine, gpus=gpus))
    launched = launch(replicas=replicas, tags_selector="tp=1")
    tell(launched)
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert [any(w.startswith(e) for w in warnings) for e in expected] == [True] * len(expected)
    assert len(warnings) == len(expected)
    number = replicas or 8
    assert launched.devices == tuple(
        {"CUDA_VISIBLE_DEVICES": f"GPU-{index}"} for index in range(number)
    )


def test_on_a_machine_with_one_gpu_nothing_is_hidden() -> None:
    assert launch().devices == ({},)


def test_more_replicas_than_gpus_are_refused_with_what_is_there() -> None:
    with pytest.raises(NoCompatibleProfile, match="needs other GPUs, or more of them"):
        launch(replicas=2, tags_selector="tp=1,gpu=hopper")


def test_a_gpu_with_too_little_free_memory_is_told_the_context_that_fits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    board = parse_hardware("l4")
    busy = replace(board, gpus=(replace(board.gpus[0], free_bytes=17 * GB),))
    monkeypatch.setattr(startup, "detect", lambda: busy)
    tell(launch())
    assert re.search(r"The context is [\d,]+ of 131,072 tokens: the free memory", caplog.text)


def test_nothing_is_said_of_a_gpu_that_is_used_or_was_not_wanted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tell(launch())
    tell(launch(model_name="nano"))
    assert not [r for r in caplog.records if r.levelname == "WARNING"]


def test_the_model_asked_for_is_launched() -> None:
    for name in ("nano", "gpt-oss-20b", "gpt-oss-120b"):
        chosen = launch(model_name=name)
        assert chosen.selection.chosen.profile.model.name == name
        assert chosen.served_name == name


def test_goals_lead_to_different_profiles() -> None:
    ids = {
        launch(model_name="gpt-oss-20b", profile_goal=goal).selection.chosen.profile.id
        for goal in ("latency", "throughput")
    }
    assert len(ids) == 2


def test_an_engine_runs_where_it_is_installed_and_here_before_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    elsewhere = {"native": None, "vllm": None, "tensorrt_llm": "not installed: no wheel"}
    theirs = Engines(elsewhere, {"native": "theirs", "vllm": "here for the CPU only"})
    monkeypatch.setattr(startup, "engines_of", lambda python: theirs)
    ours = {"native": None, "vllm": NO_ADAPTER, "tensorrt_llm": NO_ADAPTER}
    monkeypatch.setattr(startup, "installed_engines", lambda: ours)
    monkeypatch.setattr(startup, "cpu_only_engines", dict)
    settings = load({"engine_python": "/opt/vllm/bin/python"})
    assert engines_here(settings) == Engines(elsewhere, {"vllm": "here for the CPU only"})
    assert python_of(settings, "native") is None
    assert python_of(settings, "vllm") == Path("/opt/vllm/bin/python")


def test_a_python_that_cannot_be_asked_is_named() -> None:
    with pytest.raises(InvalidConstraint, match="NIM_ENGINE_PYTHON: /nowhere cannot run an engine"):
        engines_here(load({"engine_python": "/nowhere"}))


def engines_in_order(model: str) -> list[str]:
    compatible = launch(model_name=model).selection.compatible
    return list(dict.fromkeys(candidate.profile.engine for candidate in compatible))


def test_another_engine_stands_in_for_the_same_model_and_what_failed_is_told() -> None:
    first = launch(model_name="gpt-oss-20b")
    second = fallback(load({}), first, "no such library")
    assert second is not None
    was, now = (each.selection.chosen.profile for each in (first, second))
    assert [was.engine, now.engine] == engines_in_order("gpt-oss-20b")[:2]
    assert second.spec.engine == now.engine
    assert second.served_name == first.served_name == now.model.name
    words = f"engine {was.engine} cannot start: no such library"
    assert second.selection.rejected[was.id] == words
    assert second.selection.reason == f"It stands in for {was.title}: {words}."
    last: Launch | None = second
    for _ in engines_in_order("gpt-oss-20b")[1:]:
        assert last is not None
        last = fallback(load({}), last, "no memory")
    assert last is None
    assert fallback(load({}), launch(model_profile=was.id), "pinned") is None


@pytest.mark.parametrize("is_allowed", [True, False])
def test_an_engine_that_cannot_start_is_replaced_where_that_is_allowed(
    is_allowed: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, *_ = engines_in_order("gpt-oss-20b")
    served: list[str] = []

    async def start(_settings: Any, launch: Launch, *_: Any) -> int:
        served.append(launch.spec.engine)
        if launch.spec.engine == first:
            raise EngineStartError("libcuda.so is missing")
        return 0

    monkeypatch.setattr(serve, "_serve", start)
    monkeypatch.setattr(logs, "configure", lambda *_: None)
    settings = load({"model_name": "gpt-oss-20b", "engine_fallback": is_allowed, "server_port": 0})
    assert serve.run(settings, 0.0) == (0 if is_allowed else 1)
    assert served == ([first, second] if is_allowed else [first])
    errors = " ".join(r.getMessage() for r in caplog.records if r.levelname == "ERROR")
    assert "libcuda.so is missing" in errors
    assert (f"is set: serving gpt-oss-20b/{second}-" in errors) == is_allowed
    assert ("NIM_ENGINE_FALLBACK=1 (--engine-fallback) would serve" in errors) != is_allowed


def test_a_profile_is_launched_by_id() -> None:
    wanted = launch(model_name="nano").selection.chosen.profile
    assert launch(model_profile=wanted.id).selection.chosen.profile == wanted
    assert launch(model_profile="default") == launch()


def test_the_context_length_reaches_the_engine() -> None:
    assert launch(model_name="nano", max_model_len=100).spec.limits["max_model_len"] == 100
    assert launch(model_name="nano").spec.limits["max_model_len"] > 100


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
# They say when to take the profile, why, and how often.
ONLY_CHOOSE = {"goal", "status", "source", "replicas", "draft"}


@pytest.mark.parametrize("name", REACHES)
def test_every_field_of_a_profile_reaches_the_engine(name: str) -> None:
    # The model is the folder; how it is spread is the next test.
    assert {*REACHES, *ONLY_CHOOSE, "model", "parallelism"} == set(Profile.model_fields)
    wish = {"model_name": "nano", "model_profile": "native-cpu-fp32-tp1-pp1-balanced"}
    profile = launch(**wish).selection.chosen.profile
    value, target = REACHES[name]
    plain, changed = (
        spec_of(each, 4096, Path("folder"))
        for each in (profile, profile.model_copy(update={name: value}))
    )
    names = [f.name for f in fields(plain) if getattr(plain, f.name) != getattr(changed, f.name)]
    assert names == [target]


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
    spec = spec_of(spread, 100, Path("folder"))
    assert getattr(spec, target) == 2
    assert spec.num_devices == (2 if name in ("tp", "pp") else 1)


def test_the_folders_reach_the_store(machine: list[Any], tmp_path: Path) -> None:
    launched = launch(model_name="nano", cache_path=tmp_path / "cache", model_path=tmp_path / "own")
    assert machine == [(tmp_path / "cache", tmp_path / "own")]
    assert launched.spec.model_dir == str(tmp_path / "own")


def test_a_checkpoint_folder_alone_says_which_model_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 3, "hidden_size": 7}')
    with pytest.raises(ModelStoreError, match="model_type is None"):
        launch(model_path=tmp_path)


def test_a_model_path_on_the_network_is_chosen_for_by_its_config_and_fetched_later(
    tmp_path: Path,
) -> None:
    config = catalogue.load().models["gpt-oss-20b"].shape.model_dump_json().encode()
    files = {"m/tuned/config.json": config, "m/tuned/model.safetensors": shard("a")}
    with serving(files) as served:
        settings = load({"model_path": f"{served.url}/m/tuned", "cache_path": tmp_path})
        launched = prepare(settings)
        assert launched.served_name == "gpt-oss-20b"
        assert [file.name for file in launched.to_fetch] == ["model.safetensors"]
        assert not (launched.model_dir / "model.safetensors").exists()
        obtain(settings, launched)
    assert (launched.model_dir / "model.safetensors").read_bytes() == shard("a")
    assert launched.spec.model_dir == str(launched.model_dir)


def test_the_name_clients_use_can_be_chosen() -> None:
    assert launch(model_name="nano", served_model_name="mine").served_name == "mine"


def test_the_limits_and_keys_reach_the_runtime() -> None:
    given = {"max_body_bytes": 2048, "sse_keepalive_s": 3, "api_keys": "one-configured-key"}
    settings = load(
        given | {"cors_allow_origins": "https://chat.example", "disable_playground": True}
    )
    launched = prepare(settings)
    supervisor = EngineSupervisor(launched.spec)
    runtime = build_runtime(settings, launched, supervisor, Fleet([supervisor.client()]))
    assert runtime.limits.max_body_bytes == 2048
    assert runtime.limits.sse_keepalive_s == 3
    assert runtime.authenticator is not None
    assert runtime.cors_origins == ("https://chat.example",)
    assert not runtime.has_pages
    assert runtime.model.license == "Apache-2.0"
    assert runtime.model.profile is not None
    assert runtime.model.profile.reason == launched.selection.reason
    open_runtime = build_runtime(load(), launched, supervisor, Fleet([supervisor.client()]))
    assert open_runtime.authenticator is None
    assert open_runtime.has_pages


def test_the_log_names_hardware_profile_and_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    launched = launch(model_name="nano")
    tell(launched)
    profile = launched.selection.chosen.profile
    for words in ("NVIDIA H200", profile.name, profile.id, launched.selection.reason):
        assert words in caplog.text


def lack_one(monkeypatch: pytest.MonkeyPatch) -> ArtifactFile:
    file = ArtifactFile(name="config.json", size_bytes=5 * GB, sha256="a" * 64)
    monkeypatch.setattr(store, "to_fetch", lambda *_: [file])
    return file


def test_what_the_cache_lacks_is_said_before_it_is_fetched(
    machine: list[tuple[Path, Path | None]],
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = lack_one(monkeypatch)
    launched = launch(model_name="gpt-oss-20b")
    assert launched.to_fetch == (file,)
    assert launched.model_dir == cache / "models" / "gpt-oss-20b"
    assert machine == []  # deciding fetches nothing: so a dry run does not
    with caplog.at_level("INFO"):
        tell(launched)
    assert "The cache lacks 1 files (5.0 GB) of gpt-oss-20b: a start fetches them" in caplog.text


def test_obtain_fetches_from_where_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    lack_one(monkeypatch)
    asked: list[store.Fetching] = []
    monkeypatch.setattr(store, "resolve", lambda *_, fetching: asked.append(fetching))
    settings = load({"model_name": "gpt-oss-20b", "repository_override": "s3://bucket/models"})
    obtain(settings, prepare(settings))
    assert asked == [store.Fetching(is_allowed=True, override="s3://bucket/models")]


@pytest.mark.parametrize("own", [{"disable_model_download": True}, {"model_path": Path("/own")}])
def test_nothing_is_fetched_where_it_is_forbidden_or_not_needed(
    monkeypatch: pytest.MonkeyPatch, own: dict[str, Any]
) -> None:
    lack_one(monkeypatch)
    assert launch(model_name="gpt-oss-20b", **own).to_fetch == ()
