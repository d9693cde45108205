"""Why a profile, or all of them, cannot run here, in words that say what to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from profiles.errors import InvalidConstraint, NoCompatibleProfile
from profiles.hardware.machine import GB, Cpu, Gpu, Hardware
from profiles.hardware.written import parse_hardware
from profiles.selection.selector import select, survey
from profiles.selection.verdicts import Constraints, Fit
from tests.profiles.surveys import ALL, NATIVE, PROFILES, reason_for, with_free


@pytest.mark.parametrize(
    ("title", "hardware", "reason"),
    [
        (
            "gpt-oss-20b/vllm-hopper-mxfp4-tp2-pp1-balanced",
            "h200",
            "needs 2 GPUs of the Hopper family, found 1 x NVIDIA H200",
        ),
        (
            "gpt-oss-120b/tensorrt_llm-blackwell-mxfp4-tp1-pp1-latency",
            "h200x8",
            "needs 1 GPU (B100, GB200, B300 or GB300), found 8 x NVIDIA H200",
        ),
        (
            "gpt-oss-120b/vllm-80gb-mxfp4-tp1-pp1-throughput",
            "cpu",
            "needs 1 GPU (H100, H100-PCIE or A100), found none: the machine was written down "
            "without one",
        ),
        (
            "gpt-oss-120b/vllm-hopper-mxfp4-tp1-pp1-throughput",
            "h100",
            "needs 1 GPU of the Hopper family with at least 90 GB, "
            "found 1 x NVIDIA H100 80GB HBM3 with 85.5 GB",
        ),
        (
            "gpt-oss-120b/llama_cpp-gpu-mxfp4-tp1-pp1-balanced",
            "l40s",
            "needs 74.0 GB (63.2 GB weights, 1.1 GB workspace, 9.7 GB for one sequence of "
            "131,072 tokens), found 45.9 GB usable on 1 x NVIDIA L40S",
        ),
        (
            "gpt-oss-20b/native-blackwell-mxfp4-tp1-pp1-latency",
            "rtx5090",
            "needs 1 GPU of the Blackwell family of compute capability below 12.0, found 1 x "
            "NVIDIA GeForce RTX 5090",
        ),
        (
            "gpt-oss-20b/native-blackwell-rtx-mxfp4-tp1-pp1-latency",
            "b200",
            "needs 1 GPU of the Blackwell family of compute capability 12.0 or newer with at least "
            "20 GB, found 1 x NVIDIA B200 of compute capability 10.0",
        ),
    ],
)
def test_hardware_reasons(title: str, hardware: str, reason: str) -> None:
    assert reason_for(title, hardware) == reason


def test_what_is_planned_only_is_told_and_not_served() -> None:
    planned = PROFILES[0].model_copy(update={"status": "planned", "source": "next year"})
    selection = survey((planned,), parse_hardware("h200x8"), Constraints(installed=ALL))
    assert not selection.compatible
    assert selection.rejections[0].reason == "is not supported yet: next year"


def test_a_missing_engine_is_a_class_of_its_own() -> None:
    title = "gpt-oss-20b/vllm-gpu-mxfp4-tp1-pp1-balanced"
    reason = reason_for(title, "l40s", installed=NATIVE)
    assert reason == "engine vllm is not installed: the library is missing"
    assert "it has no adapter" in reason_for(title, "l40s", installed={})
    selection = survey(PROFILES, parse_hardware("l40s"), Constraints(installed=NATIVE))
    fits = {r.profile.title: r.fit for r in selection.rejections}
    assert fits[title] is Fit.NOT_INSTALLED


@pytest.mark.parametrize(
    "wish",
    [
        {"model": "nano"},
        {"profile": "native-cpu-fp32-tp1-pp1-balanced"},
        {"tags": {"model": "nano"}},
    ],
)
def test_a_machine_with_a_gpu_serves_the_demonstration_by_name_only(wish: dict[str, Any]) -> None:
    installed = {"native": None, "vllm": "not installed: run `install vllm`"}
    unnamed = Constraints(goal="latency", installed=installed, tags={"precision": "fp32"})
    for nothing in (Constraints(installed=installed), unnamed):
        assert not survey(PROFILES, parse_hardware("t4"), nothing).compatible
    refused = refusal_of(parse_hardware("t4:ram=8gb"), Constraints(installed=installed))
    assert str(refused).splitlines()[0].endswith(" Only to try the server: NIM_MODEL_NAME=nano.")
    kept_back = reason_for("nano/native-cpu-fp32-tp1-pp1-balanced", "t4", installed=installed)
    assert kept_back.endswith("only if named: NIM_MODEL_NAME=nano")
    named = survey(PROFILES, parse_hardware("l40s"), Constraints(installed=installed, **wish))
    assert named.chosen.profile.model.name == "nano"
    without = survey(PROFILES, parse_hardware("cpu"), Constraints(installed=installed))
    assert without.chosen.profile.model.name == "nano"


def test_an_old_gpu_is_told_its_capability() -> None:
    turing = Gpu(0, "Tesla T4", None, "1eb8:10de", (7, 5), 16 * GB, 16 * GB)
    machine = replace(parse_hardware("cpu"), gpus=(turing,))
    assert reason_for("gpt-oss-20b/vllm-gpu-mxfp4-tp1-pp1-balanced", machine) == (
        "needs 1 GPU of compute capability 8.0 or newer, "
        "found 1 x Tesla T4 of compute capability 7.5"
    )


def test_gpus_of_different_kinds_are_not_joined() -> None:
    mixed = replace(
        parse_hardware("h100"), gpus=parse_hardware("h100").gpus + parse_hardware("h200").gpus
    )
    reason = reason_for("gpt-oss-20b/vllm-hopper-mxfp4-tp2-pp1-balanced", mixed)
    assert reason.endswith("found 1 x NVIDIA H100 80GB HBM3, 1 x NVIDIA H200")


def refusal_of(machine: Hardware, wish: Constraints) -> NoCompatibleProfile:
    with pytest.raises(NoCompatibleProfile) as caught:
        select(PROFILES, machine, wish)
    lines = str(caught.value).splitlines()
    assert len(lines) <= 15
    assert lines[1].startswith("None of the ")
    assert set(caught.value.reasons) == {profile.title for profile in PROFILES}
    return caught.value


def test_a_refusal_starts_with_the_remedy_and_then_the_model_that_was_asked_for() -> None:
    wish = Constraints(model="gpt-oss-120b", installed=ALL)
    lines = str(refusal_of(parse_hardware("l4:ram=32gb"), wish)).splitlines()
    assert lines[0] == (
        "Unset NIM_MODEL_NAME or NIM_MODEL_PATH (gpt-oss-120b) to serve gpt-oss-20b, "
        "which can run here."
    )
    assert lines[2].startswith("  1 profile of gpt-oss-120b: needs 73.9 GB (63.2 GB wei")
    assert lines[-2].startswith("  excluded by your request: ")


def test_a_refusal_puts_equal_reasons_together() -> None:
    wish = Constraints(model="gpt-oss-20b", engine="vllm", installed={"native": None})
    text = str(refusal_of(parse_hardware("cpu"), wish))
    assert text.count("found none") == 1
    assert text.splitlines()[0].endswith(
        "Or unset --engine (vllm) and NIM_MODEL_NAME or NIM_MODEL_PATH (gpt-oss-20b) to serve "
        "nano, which can run here."
    )


@pytest.mark.parametrize(
    ("machine", "wish", "remedy"),
    [
        (
            "cpu",
            Constraints(model="nano", tags={"tp": "8"}),
            "Unset NIM_TAGS_SELECTOR (tp=8) to serve nano, which can run here.",
        ),
        (
            "h200",
            Constraints(memory_fraction=0.02),
            "Unset NIM_KVCACHE_PERCENT (0.02) to serve gpt-oss-120b, which can run here.",
        ),
        (
            "h200x2",
            Constraints(model="gpt-oss-20b", num_replicas=40, max_model_len=8192),
            "Unset NIM_REPLICAS (40) to serve gpt-oss-20b with 2 engines, which can run here.",
        ),
        (
            "h200",
            Constraints(model="gpt-oss-20b", tags={"tp": "2"}, max_model_len=900_000),
            "Unset NIM_TAGS_SELECTOR (tp=2) and NIM_MAX_MODEL_LEN (900000) to serve gpt-oss-20b, "
            "which can run here.",
        ),
    ],
)
def test_a_refusal_names_only_what_is_in_the_way(
    machine: str, wish: Constraints, remedy: str
) -> None:
    text = str(refusal_of(parse_hardware(machine), replace(wish, installed=ALL)))
    assert text.splitlines()[0] == remedy


@pytest.mark.parametrize("installed", [ALL, {**ALL, "llama_cpp": "not installed"}])
def test_the_cpu_is_no_substitute_for_gpus_that_hold_fewer_engines(
    installed: dict[str, str | None],
) -> None:
    wish = Constraints(num_replicas=4, installed=installed)
    text = str(refusal_of(parse_hardware("h200x2"), wish))
    assert text.splitlines()[0] == (
        "Unset NIM_REPLICAS (4) to serve gpt-oss-120b with 2 engines, which can run here."
    )
    selection = survey(PROFILES, parse_hardware("h200x2"), wish)
    reasons = {r.reason for r in selection.rejections if r.profile.name.startswith("llama_cpp-cpu")}
    assert reasons == {
        "runs on the CPU; without NIM_REPLICAS (4), gpt-oss-120b runs on 2 x NVIDIA H200 with "
        "2 engines"
    }


def test_engines_on_the_cpu_of_a_gpu_machine_are_served_to_those_who_name_their_profile() -> None:
    profile = "llama_cpp-cpu-mxfp4-tp1-pp1-balanced"
    wish = Constraints(num_replicas=2, profile=f"gpt-oss-20b/{profile}", installed=ALL)
    chosen = select(PROFILES, parse_hardware("h200"), wish).chosen
    assert (chosen.profile.name, chosen.placement.num_replicas) == (profile, 2)


def test_a_tag_that_excludes_the_model_of_a_missing_engine_is_named_beside_it() -> None:
    missing = {"native": None, "llama_cpp": "not installed: its library is missing"}
    wish = Constraints(model="gpt-oss-20b", tags={"tp": "8"}, installed=missing)
    text = str(refusal_of(parse_hardware("cpux8:ram=32gb"), wish))
    assert text.startswith(
        "Without NIM_TAGS_SELECTOR (tp=8), gpt-oss-20b fits 8 CPU cores, no GPU, but engine "
        "llama_cpp is not installed: its library is missing. Or unset NIM_TAGS_SELECTOR (tp=8) "
        "and NIM_MODEL_NAME or NIM_MODEL_PATH (gpt-oss-20b) to serve nano, which can run here."
    )


def test_where_only_the_library_is_missing_that_is_the_remedy() -> None:
    missing = {"native": None, "llama_cpp": "not installed: its library is missing"}
    wish = Constraints(model="gpt-oss-20b", installed=missing)
    text = str(refusal_of(parse_hardware("cpux8:ram=32gb"), wish))
    assert text.startswith(
        "gpt-oss-20b fits 8 CPU cores, no GPU, but engine llama_cpp "
        "is not installed: its library is missing. Or unset NIM_MODEL_NAME or NIM_MODEL_PATH "
        "(gpt-oss-20b) to serve nano, which can run here."
    )


def test_a_refusal_names_the_context_that_would_fit() -> None:
    wish = Constraints(model="gpt-oss-20b", max_model_len=131_072, installed={"vllm": None})
    text = str(refusal_of(with_free("l4", 20), wish))
    assert text.startswith("Set NIM_MAX_MODEL_LEN=")
    assert ": gpt-oss-20b/vllm" in text.splitlines()[0]


def test_a_machine_without_memory_cannot_even_run_nano() -> None:
    tiny = Hardware(Cpu("tiny", 1, GB // 2, GB // 2), no_gpu_reason="none")
    text = str(refusal_of(tiny, Constraints(installed=ALL)))
    assert text.startswith("Free memory, or add some: nano needs 1.2 GB")
    assert "found 0.5 GB usable of the machine's memory" in text.splitlines()[0]


@pytest.mark.parametrize(
    ("wish", "complaint"),
    [
        (Constraints(model="gpt-oss-12b"), r"model 'gpt-oss-12b' .*did you mean 'gpt-oss-120b'"),
        (
            Constraints(model="gpt-oss-safeguard:20b"),
            r"NIM_MODEL_PATH=hf://openai/gpt-oss-safeguard-20b serves it",
        ),
        (Constraints(engine="vlm"), r"engine 'vlm' .*did you mean 'vllm'"),
        (Constraints(profile="f" * 64), r"profile 'f{64}' is not in the catalogue.*harmonium pro"),
        (Constraints(profile="vllm-mxfp4-tp3-pp1"), r"did you mean 'vllm-mxfp4-tp"),
        (Constraints(tags={"tpp": "2"}), r"tag 'tpp' .*did you mean 'tp'"),
        (Constraints(max_model_len=0), r"max_model_len 0 must be at least 1"),
    ],
)
def test_a_wish_for_what_does_not_exist_names_the_nearest(
    wish: Constraints, complaint: str
) -> None:
    with pytest.raises(InvalidConstraint, match=complaint):
        survey(PROFILES, parse_hardware("h200"), wish)


def test_a_length_that_was_asked_for_and_does_not_fit_is_low_memory() -> None:
    wish = Constraints(model="gpt-oss-20b", max_model_len=131_072, installed={"vllm": None})
    machine = with_free("l4", 20)
    low = [r for r in survey(PROFILES, machine, wish).rejections if r.fit is Fit.LOW_MEMORY]
    by_name = {rejection.profile.name: rejection for rejection in low}
    balanced = by_name["vllm-gpu-mxfp4-tp1-pp1-balanced"]
    assert balanced.max_model_len is not None
    assert balanced.reason.endswith(f"a context of {balanced.max_model_len:,} tokens would fit")
    shorter = replace(wish, max_model_len=balanced.max_model_len)
    assert survey(PROFILES, machine, shorter).chosen.max_model_len == balanced.max_model_len
