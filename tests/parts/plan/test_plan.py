"""`harmonium plan`: what a person reads, what a program reads, the plot, the exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from service.__main__ import main
from tests.parts.plan import sizing


def test_the_answer_comes_first_and_says_that_it_is_a_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--gpu", "h200x8", "--users", "500", "--tps", "30", "--ttft", "2000"]
    assert main(["plan", "gpt-oss-120b", *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    asked = "500 concurrent users, 1,024 tokens in, 1,024 out, at least 30 tok/s each"
    within = "95 % of first tokens within 2,000 ms"
    assert lines[0] == f"PLAN for {asked}, {within} on 8 x NVIDIA H200"
    assert lines[1].startswith("An estimate, not a measurement")
    take = next(line for line in lines if line.startswith("TAKE"))
    assert " x NVIDIA H200: " in take
    assert any("confidence: error on held-out measurements: median" in line for line in lines)
    assert any("these GPUs serve " in line for line in lines)
    assert any(line.strip().endswith(tuple("abcdefghij#:")) and "|" in line for line in lines)


def test_the_json_holds_every_profile_and_the_curves(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "openai/gpt-oss-20b", "--gpu", "b200", "--users", "64", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["is_measured"] is False
    assert answer["gpu"] == "b200"
    best = next(option for option in answer["options"] if option["id"] == answer["chosen"])
    assert best["num_gpus"] == min(option["num_gpus"] for option in answer["options"])
    assert best["tokens_per_s_per_user"] > 0
    assert best["median_error"] > 0
    assert all(len(curve["points"]) > 1 for curve in answer["curves"])
    assert all(refusal["reason"] for refusal in answer["refusals"])


def test_one_engine_alone_and_what_is_missing_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--gpu", "h200", "--engine", "tensorrt_llm"]
    assert main(["plan", "gpt-oss-120b", *options]) == 0
    text = capsys.readouterr().out
    assert "  engine tensorrt_llm is not installed: " in text
    assert "vllm" not in text.split("NOT\n")[0]


@pytest.mark.heavy
def test_an_engine_in_the_python_of_its_own_is_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho \'{"installed":{"tensorrt_llm":null},"cpu_only":{}}\'')
    python.chmod(0o755)
    monkeypatch.setenv("NIM_ENGINE_PYTHON", str(python))
    options = ["--gpu", "h200", "--engine", "tensorrt_llm"]
    assert main(["plan", "gpt-oss-120b", *options]) == 0
    assert "not installed" not in capsys.readouterr().out.split("NOT\n")[0]


def test_the_plot_is_a_picture_with_a_line_for_every_curve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.svg"
    options = ["--gpu", "h100", "--tps", "40", "--svg", str(file), "--json"]
    assert main(["plan", "gpt-oss-20b", *options]) == 0
    curves = json.loads(capsys.readouterr().out)["curves"]
    root = ElementTree.fromstring(file.read_text(encoding="utf-8"))
    lines = root.findall("{*}polyline")
    assert len(lines) == len(curves) > 1
    words = {text.text for text in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {curve["label"] for curve in curves} <= words
    assert {"tok/s per user", "40 tok/s requested", "circle: recommended"} <= words


def test_gpus_that_share_each_layer_are_planned_for_one_fast_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    load = ["--isl", "128", "--osl", "256", "--engine", "native", "--gpu", "h200x2"]
    assert main(["plan", "gpt-oss-20b", *load]) == 0
    assert "native-h200-mxfp4-tp1-" in capsys.readouterr().out.split("\n\n")[1]
    assert main(["plan", "gpt-oss-20b", *load, "--tps", "725"]) == 0
    text = capsys.readouterr().out
    assert "TAKE 2 x NVIDIA H200: 1 engine on 2 GPUs, gpt-oss-20b/native-h200-mxfp4-tp2-" in text
    assert "`harmonium serve -tp 2` takes it" in text


def test_gpus_that_pcie_joins_are_estimated_and_not_recommended(
    capsys: pytest.CaptureFixture[str],
) -> None:
    load = ["--isl", "128", "--osl", "256", "--engine", "native"]
    load += ["--gpu", "rtx-pro-6000x2", "--json"]
    assert main(["plan", "gpt-oss-120b", *load, "--tps", "150"]) == 0
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)["options"]}
    shared = found["native-blackwell-rtx-mxfp4-tp2-pp1-latency"]
    alone = found["native-blackwell-rtx-mxfp4-tp1-pp1-latency"]
    assert shared["trust"] == "none: nothing like it was run, and it is not supported yet"
    assert shared["tokens_per_s_per_user"] < alone["tokens_per_s_per_user"]  # 73 waits for PCIe
    assert main(["plan", "gpt-oss-20b", *load[:-1], "--tps", "100000"]) == 3
    assert "TAKE 2" not in capsys.readouterr().out


def test_gpus_that_do_not_suffice_exit_3_and_say_what_would(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", "gpt-oss-120b", "--gpu", "h100", "--users", "9" * 6]) == 0
    capsys.readouterr()
    assert main(["plan", "gpt-oss-120b", "--gpu", "h100x2", "--users", "9" * 6]) == 3
    text = capsys.readouterr().out
    assert "TAKE more GPUs: these serve " in text
    assert " GPUs of this kind would suffice, with gpt-oss-120b/" in text
    assert "(too many)" in text


def test_a_model_that_fits_no_gpu_named_exits_3_with_the_reasons(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", "gpt-oss-120b", "--gpu", "l4x2"]) == 3
    text = capsys.readouterr().out
    assert "TAKE nothing: no profile meets these targets on these GPUs" in text
    assert "NOT\n" in text


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["gpt-oss-200b", "--gpu", "h200"], "did you mean 'gpt-oss-20b'"),
        (["gpt-oss-20b", "--gpu", "h2000"], "did you mean 'h200'"),
        (["gpt-oss-20b", "--gpu", "h200", "--users", "0"], "users 0 must be at least 1"),
        (["gpt-oss-20b", "--gpu", "h200", "--tps", "-1"], "tps must be above 0"),
        (["gpt-oss-20b"], "No GPU here. Name one: `--gpu h200x8`."),
        (["gpt-oss-20"], "did you mean 'gpt-oss-20b'"),
        (["gpt-oss-20b", "--gpu", "h200", "--svg", "/nowhere/a.svg"], "--svg /nowhere/a.svg"),
    ],
)
def test_bad_arguments_exit_2(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert complaint in captured.err


@pytest.mark.parametrize("path", sizing.PAGES, ids=lambda path: path.name)
def test_a_page_shows_what_the_plan_says_now(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    assert sizing.refreshed(page) == page, "`make docs` writes them anew"
