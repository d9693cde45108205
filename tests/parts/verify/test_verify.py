"""`harmonium verify`: the engine beside transformers, and what counts as agreeing."""

from __future__ import annotations

import subprocess
import sys
from math import log
from pathlib import Path

import pytest

from parts.verify.report import Measured, rows, table
from parts.verify.texts import prompts, texts
from profiles.hardware.written import parse_hardware
from service.__main__ import main
from service.chat_format import format_named
from service.harmony.vocabulary import decode_marked
from service.run import startup
from tools.benchmarks.checkpoint import write_random

LIKELY = (log(0.5), log(0.25))
OURS = Measured("native 1", (LIKELY,), ((1, 2, 3),))


def verdicts(theirs: Measured, margins: list[float]) -> list[bool]:
    return [row.agrees for row in rows(OURS, theirs, [margins])]


def test_the_same_tokens_and_perplexity_agree() -> None:
    same = Measured("transformers 5", (LIKELY,), ((1, 2, 3),))
    found = rows(OURS, same, [[3.0, 3.0, 3.0]])
    assert all(row.agrees for row in found)
    text = "\n".join(table(OURS, same, found))
    assert "perplexity of text 1 (2 tokens)" in text
    assert "2.828" in text  # 8 ** 0.5
    assert "3 of 3 equal" in text


def test_another_perplexity_differs() -> None:
    assert verdicts(Measured("t", ((log(0.5), log(0.245)),), ((1, 2, 3),)), [3.0] * 3) == [True] * 2
    assert not verdicts(Measured("t", ((log(0.5), log(0.2)),), ((1, 2, 3),)), [3.0] * 3)[0]


def test_a_reference_that_rounds_too_may_differ_by_more() -> None:
    theirs = ((log(0.5), log(0.235)),)  # 3 % apart
    assert not verdicts(Measured("t", theirs, ((1, 2, 3),)), [3.0] * 3)[0]
    assert verdicts(Measured("t", theirs, ((1, 2, 3),), is_exact=False), [3.0] * 3)[0]
    other = ((log(0.5), log(0.19)),)  # 15 %
    assert not verdicts(Measured("t", other, ((1, 2, 3),), is_exact=False), [3.0] * 3)[0]


@pytest.mark.parametrize(
    ("gpu", "host", "place"),
    [(100, 200, ("cuda", "float32")), (60, 200, ("cpu", "float32")), (60, 60, ("cuda", "bfloat16")),
     (0, 60, ("cpu", "bfloat16")), (0, 0, ("cpu", "bfloat16"))],
)  # fmt: skip
def test_transformers_computes_in_float32_where_its_weights_fit(
    gpu: int, host: int, place: tuple[str, str]
) -> None:
    from parts.verify.reference import chosen_place

    assert chosen_place(20 * 10**9, "bfloat16", gpu * 10**9, host * 10**9) == place


def test_other_tokens_differ_unless_two_were_near() -> None:
    other = Measured("t", (LIKELY,), ((1, 9, 3),))
    assert verdicts(other, [3.0, 0.01, 3.0])[1]
    assert not verdicts(other, [0.01, 3.0, 0.01])[1]
    shorter = Measured("t", (LIKELY,), ((1, 2),))
    assert not verdicts(shorter, [3.0, 3.0])[1]
    (_, row) = rows(OURS, other, [[3.0, 0.01, 3.0]])
    assert row.note == "equal up to token 2; the two best logits differ by 0.01 there"


def test_the_texts_are_harmony() -> None:
    format = format_named("harmony")
    assert len(prompts(format)) == len(texts(format)) == 3
    for prompt, text in zip(prompts(format), texts(format), strict=True):
        assert decode_marked(prompt).endswith("<|start|>assistant")
        assert decode_marked(text).startswith("<|channel|>final<|message|>")
        assert not decode_marked(text).endswith("<|end|>")


def test_a_gguf_file_cannot_be_compared(
    capsys: pytest.CaptureFixture[str], nano_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup, "visible_hardware", lambda: parse_hardware("t4:ram=8gb"))
    assert main(["verify", f"--cache-path={nano_cache}"]) == 3
    assert "fits 1 x Tesla T4, but engine llama_cpp is not installed" in capsys.readouterr().err


@pytest.mark.slow  # transformers computes it, too
def test_rounded_experts_agree_with_transformers_whose_are_rounded_alike(
    tmp_path: Path, nano_cache: Path
) -> None:
    folder = write_random(tmp_path / "odd", hidden=64, num_layers=4, num_experts=8)
    command = [sys.executable, "-m", "service", "verify", f"--model-path={folder}"]
    command += ["--quantize=mxfp4", f"--cache-path={nano_cache}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "(experts rounded to MXFP4, float32, cpu)" in done.stdout.splitlines()[0]
    assert done.stdout.splitlines()[-1] == "odd: they agree."


@pytest.mark.slow  # transformers computes nano, too
@pytest.mark.parametrize("ranks", ["1", "2"])
def test_nano_agrees_with_transformers(nano_cache: Path, ranks: str) -> None:
    command = [sys.executable, "-m", "service", "verify", "--model-name=nano", "-tp", ranks]
    command += [f"--cache-path={nano_cache}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 8
    assert "transformers 5." in lines[0]
    assert all(" ok " in line for line in lines[1:7])
    assert lines[7] == "nano: they agree."


@pytest.mark.slow
def test_without_transformers_the_command_that_adds_it_is_named(
    nano_cache: Path, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho \"No module named 'transformers'\" >&2; exit 1\n")
    python.chmod(0o755)
    command = [sys.executable, "-m", "service", "verify", "--model-name=nano"]
    command += [f"--cache-path={nano_cache}", f"--reference-python={python}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "tools/install.py verify`" in done.stderr
