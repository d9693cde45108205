"""Settings → what is launched: every setting that chooses has its effect here."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.errors import EngineStartError
from profiles.errors import InvalidConstraint, ModelStoreError, NoCompatibleProfile
from profiles.hardware.machine import GB
from profiles.hardware.written import parse_hardware
from service.cli import serve
from service.run import pythons, startup
from service.run.startup import Launch, fallback, tell
from service.run.wiring import served_model
from service.settings.settings import load
from service.telemetry import logs
from tests.service.run.conftest import launch

pytestmark = pytest.mark.usefixtures("machine", "cache")

ABSENT = "not installed: a wheel"


def test_a_machine_with_a_gpu_serves_the_demonstration_by_name_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(startup, "visible_hardware", lambda: parse_hardware("b200x8"))
    engines = {"native": None, **dict.fromkeys(("llama_cpp", "vllm", "tensorrt_llm"), ABSENT)}
    cpu_only = {"native": "built for CPUs only: run this"}
    monkeypatch.setattr(pythons, "installed_engines", lambda: engines)
    monkeypatch.setattr(pythons, "cpu_only_engines", lambda: cpu_only)
    with pytest.raises(NoCompatibleProfile, match="Only to try the server: NIM_MODEL_NAME=nano"):
        launch()
    assert launch(model_name="nano").selection.chosen.profile.model.name == "nano"
    monkeypatch.setattr(startup, "visible_hardware", lambda: parse_hardware("cpux4"))
    assert launch().selection.chosen.profile.model.name == "nano"


def test_a_gpu_that_stays_idle_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(startup, "visible_hardware", lambda: parse_hardware("a10"))
    engines = {"llama_cpp": None, **dict.fromkeys(("native", "vllm", "tensorrt_llm"), ABSENT)}
    cpu_only = {"llama_cpp": "built for CPUs only: run this"}
    monkeypatch.setattr(pythons, "installed_engines", lambda: engines)
    monkeypatch.setattr(pythons, "cpu_only_engines", lambda: cpu_only)
    tell(launch(model_name="gpt-oss-20b"))
    said = (
        "1 x NVIDIA A10 is idle: gpt-oss-20b runs on the CPU. Missing: "
        "engine llama_cpp is built for CPUs only: run this; "
    )
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(warnings) == 1
    assert warnings[0].startswith(said)


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
    monkeypatch.setattr(startup, "visible_hardware", lambda: replace(machine, gpus=gpus))
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
    monkeypatch.setattr(startup, "visible_hardware", lambda: busy)
    tell(launch())
    assert re.search(r"The context is [\d,]+ of 131,072 tokens; more does not fit", caplog.text)


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


def test_independence_of_batch_neighbours_is_the_native_engines_on_a_gpu() -> None:
    hopper = {"model_name": "gpt-oss-20b", "tags_selector": "llm_engine=native"}
    assert launch(**hopper, batch_invariant=True).spec.options["batch_invariant"] is True
    assert "batch_invariant" not in launch(**hopper).spec.options
    with pytest.raises(InvalidConstraint, match=r"NIM_BATCH_INVARIANT .* engine native on the CPU"):
        launch(
            model_name="nano",
            model_profile="native-cpu-fp32-tp1-pp1-balanced",
            batch_invariant=True,
        )


def test_goals_lead_to_different_profiles() -> None:
    ids = {
        launch(model_name="gpt-oss-20b", profile_goal=goal).selection.chosen.profile.id
        for goal in ("latency", "throughput")
    }
    assert len(ids) == 2


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
    assert words in [r.reason for r in second.selection.rejections if r.profile.id == was.id]
    assert second.selection.reason == f"It replaces {was.title}: {words}."
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
    monkeypatch.setattr(logs, "configure", lambda *_, **__: None)
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


def test_a_checkpoint_folder_alone_says_which_model_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 3, "hidden_size": 7}')
    with pytest.raises(ModelStoreError, match="model_type is None"):
        launch(model_path=tmp_path)


def test_the_names_clients_use_can_be_chosen() -> None:
    launched = launch(model_name="gpt-oss-20b", served_model_name="mine, org/mine:1")
    assert served_model(launched).listed == served_model(launched).names == ("mine", "org/mine:1")


def test_without_names_the_model_answers_to_those_by_which_others_know_it() -> None:
    model = served_model(launch(model_name="gpt-oss:20b"))
    assert model.listed == ("gpt-oss-20b",)
    assert model.names == ("gpt-oss-20b", "openai/gpt-oss-20b", "gpt-oss:20b")
    assert served_model(launch(model_name="nano")).names == ("nano",)


def test_the_log_names_hardware_profile_and_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    launched = launch(model_name="nano")
    tell(launched)
    profile = launched.selection.chosen.profile
    for words in ("NVIDIA H200", profile.name, profile.id[:12], launched.selection.reason):
        assert words in caplog.text


@pytest.mark.parametrize("below", [".", "cache"])
def test_a_cache_that_this_user_may_not_open_is_named(closed_folder: Path, below: str) -> None:
    with pytest.raises(ModelStoreError, match="cannot be read by user") as raised:
        launch(cache_path=closed_folder / below)
    assert "NIM_CACHE_PATH" in str(raised.value)


@pytest.mark.parametrize(("mode", "is_told"), [(0o777, True), (0o1777, False), (0o775, False)])
def test_a_cache_that_every_user_may_write_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, is_told: bool
) -> None:
    tmp_path.chmod(mode)
    startup.warn_of_open_cache(tmp_path)
    assert ("replace the model" in caplog.text) is is_told


@pytest.mark.heavy
def test_the_engine_waits_for_no_library_that_answers_requests() -> None:
    """`serve` imports all this before it spawns the engine process."""
    late = {"fastapi", "numpy", "prometheus_client", "starlette", "torch"}
    check = (
        "import sys, service.cli.serve, service.run.service; "
        f"sys.exit(', '.join({late} & sys.modules.keys()))"
    )
    process = subprocess.run([sys.executable, "-c", check], check=False, capture_output=True)
    assert not process.stderr.strip(), process.stderr
