"""`harmonium profiles`: the listing a person reads, the JSON a program reads, the exit codes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from profiles.catalogue.catalogue import Catalogue
from profiles.hardware.written import parse_hardware
from service.__main__ import main

Command = Callable[..., int]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Command:
    def call(*arguments: str, **settings: object) -> int:
        for name, value in settings.items():
            monkeypatch.setenv(f"NIM_{name.upper()}", str(value))
        return main(["profiles", *arguments])

    return call


def test_this_machine_can_run_something(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command() == 0
    text = capsys.readouterr().out
    assert text.startswith("SYSTEM INFO\n- GPUs")
    assert "- CPU: " in text
    assert "(nano/native-cpu-fp32-tp1-pp1-balanced) [requires >=1" in text
    assert "engine vllm is not installed" in text or "found none: " in text


def test_another_machine(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--hardware", "h200x8", "--all-engines", "--goal", "latency") == 0
    text = capsys.readouterr().out
    assert "SYSTEM INFO (a described machine, not this one)" in text
    assert "[2335:10de] (7) NVIDIA H200 (hopper, compute capability 9.0) [150.8 GB" in text
    selected = "gpt-oss-120b/native-h200-mxfp4-tp2-pp1-latency"
    assert f"({selected}) [requires >=39.0 GB/gpu, tuned]  <- selected" in text
    where = "on GPUs 0-7: 4 engines side by side, each on 2 of its own"
    assert f"SELECTED\n- {selected}\n  {where}\n" in text
    assert "  It is preferred to gpt-oss-20b/native-h200-mxfp4-tp2-pp1-latency because" in text
    assert "  - needs other GPUs, or more of them, than 8 x NVIDIA H200:\n" in text


@pytest.mark.parametrize("card", ["a100", "l40s", "b200", "rtx5090"])
def test_a_card_on_which_nobody_ran_the_engine_is_told_so(
    command: Command, capsys: pytest.CaptureFixture[str], card: str
) -> None:
    assert command("--gpu", card) == 0  # the name that `harmonium plan` has for it
    text = " ".join(capsys.readouterr().out.split())
    assert "GB/gpu, compiled and limit-checked, not run on this card] <- selected" in text
    assert "and checked against its limits; this project has not run it there." in text


def test_gpus_that_a_machine_lacks_take_a_line_not_a_hundred(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("--hardware", "cpu", "--all-engines") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40
    assert "  - needs NVIDIA GPUs, found none: the machine was written down without one:" in lines
    command("--hardware", "cpu", "--all-engines", "--json")
    profiles = json.loads(capsys.readouterr().out)["profiles"]
    assert any("needs 8 GPUs of the Hopper family" in p.get("reason", "") for p in profiles)


def test_engines_without_an_adapter_are_told_apart(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("--hardware", "t4", "--model", "gpt-oss-20b") == 3
    text = capsys.readouterr().out
    assert "- Compatible with system and runnable:\n  (none)\n" in text
    assert "- Compatible with system, but not installed:\n  - engine " in text
    assert (
        "- Excluded by your request:\n  - serves gpt-oss-120b, but you requested model gpt-oss-20b"
        in text
    )
    assert "SELECTED\n- none: None of the " in text


def test_nothing_is_excluded_by_a_request_that_was_not_made(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("--hardware", "h200", "--all-engines") == 0
    text = capsys.readouterr().out
    assert "your request" not in text
    off = text.partition("- Off by default:\n")[2].partition("SELECTED")[0]
    for reason in ("draft head", "shares each layer", "a demonstration model"):
        assert reason in off


def test_low_memory_says_what_to_try(
    command: Command, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = parse_hardware("l4")
    busy = replace(shared, gpus=(replace(shared.gpus[0], free_bytes=20 * 10**9),))
    monkeypatch.setattr("service.cli.profiles.visible_hardware", lambda: busy)
    options = ("--all-engines", "--model", "gpt-oss-20b", "--engine", "vllm")
    assert command(*options, "--max-model-len", "131072") == 3
    text = capsys.readouterr().out
    assert "- Compatible with system, but too little memory:\n" in text
    (advice,) = re.findall(
        r"vllm-gpu-mxfp4-tp1-pp1-balanced\) \[requires >=21\.8 GB/gpu, "
        r"try --max-model-len=(\d+) to reduce to >=(?:19\.9|20\.0) GB/gpu\]",
        text,
    )
    assert command(*options, "--max-model-len", advice) == 0
    assert command(*options) == 0
    assert "  Note: The context is " in capsys.readouterr().out


def test_json_has_every_profile(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--hardware", "h100", "--all-engines", "--engine", "vllm", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    profiles = {profile["id"]: profile for profile in answer["profiles"]}
    selected = profiles[answer["selected"]]
    assert (selected["fit"], selected["engine"], selected["gpu_indices"]) == (
        "runnable",
        "vllm",
        [0],
    )
    assert selected["kv_tokens"] >= selected["max_model_len"] == 131072
    assert selected["replicas"] == 1
    assert {r["name"].split("/")[0] for r in answer["rivals"]} == {"gpt-oss-20b"}
    assert answer["notes"] == []
    assert selected["required_bytes_per_device"] < answer["hardware"]["gpus"][0]["free_bytes"]
    assert all(profile["source"] for profile in profiles.values())
    rejected = [profile for profile in profiles.values() if profile["fit"] != "runnable"]
    assert rejected
    assert all(profile["reason"] for profile in rejected)
    assert answer["hardware"]["is_assumed"] is True


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--hardware", "h2000"), "did you mean 'h200'"),
        (("--model", "gpt-oss-200b"), "did you mean 'gpt-oss-20b'"),
        (("--max-model-len", "-5"), "max_model_len -5 must be at least 1"),
    ],
)
def test_bad_arguments_exit_2(
    command: Command,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    complaint: str,
) -> None:
    assert command(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert complaint in captured.err


def test_settings_constrain_and_options_win(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("--hardware", "cpu", model_name="gpt-oss-20b") == 3
    assert command("--hardware", "cpu", "--model", "nano", model_name="gpt-oss-20b") == 0
    assert command("--hardware", "cpu", model_profile="vllm-mxfp4-tp1-pp1") == 3
    capsys.readouterr()


def test_the_tags_selector_leaves_only_what_has_the_tags(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"tags_selector": "precision=mxfp4, tp=2"}
    arguments = ("--hardware", "h200x8", "--all-engines", "--json")
    assert command(*arguments, **settings) == 0
    listing = json.loads(capsys.readouterr().out)
    selected = next(p for p in listing["profiles"] if p["id"] == listing["selected"])
    assert "-tp2-" in selected["name"]
    assert command("--hardware", "h200x8", tags_selector="tpp=2") == 2
    assert "'tpp'" in capsys.readouterr().err


def test_a_model_path_chooses_the_model_it_holds(
    command: Command, capsys: pytest.CaptureFixture[str], catalogue: Catalogue, tmp_path: Path
) -> None:
    config = catalogue.models["gpt-oss-20b"].shape.model_dump_json()
    (tmp_path / "config.json").write_text(config)
    options = ("--hardware", "h200", "--all-engines", "--json")
    assert command(*options, model_path=tmp_path) == 0
    profiles = json.loads(capsys.readouterr().out)["profiles"]
    assert {p["model"] for p in profiles if p["fit"] == "runnable"} == {"gpt-oss-20b"}
    assert command(*options, model_path=tmp_path / "nowhere") == 2
    assert "NIM_MODEL_PATH is" in capsys.readouterr().err


@pytest.mark.heavy
def test_the_listing_loads_neither_torch_nor_numpy() -> None:
    check = (
        "import sys; from service.cli.profiles import profiles; "
        "profiles(['--hardware', 'h200', '--json'], standalone_mode=False); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'pynvml')))"
    )
    process = subprocess.run([sys.executable, "-c", check], check=False, capture_output=True)
    assert process.returncode == 0, process.stderr
