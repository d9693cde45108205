"""Evaluation programs, end to end on nano: they score, and log-likelihoods are transformers'."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from service.harmony.vocabulary import encode_marked
from tests.clients.conftest import INSTALLED, PATIENCE_S, ROOT

pytestmark = pytest.mark.clients

HERE = Path(__file__).parent
BIN = INSTALLED / "evals" / "bin"
LIMIT_S = 600
IS_GPU = Path("/dev/nvidiactl").exists()
MARGIN = 1.0 if IS_GPU else 1e-3  # of a choice's sum; the CUDA backend computes in bf16
QUESTIONS: list[dict[str, Any]] = [
    {"question": "The capital of France is", "choices": [" Paris", " a big green apple tree"]},
    {"question": "Two and two make", "choices": [" four", " nineteen geese 🪿"]},
    {"question": "Grüße aus Zürich, die Sonne", "choices": [" scheint", " ist ein Fisch."]},
    {"question": "def f(x):\n    return", "choices": [" x", " x + 1\n", " None"]},
]
TASK = """task: facts
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/facts.jsonl}}}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: 0
target_delimiter: ""
metric_list: [{{metric: acc}}]
"""
INSPECT = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate


@task
def about():
    return Task([Sample("What is nano?", target="model")], solver=generate(), scorer=includes())
"""


@pytest.fixture(scope="module")
def nano(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of `harmonium serve` with nano, and nano's checkpoint."""
    cache = tmp_path_factory.mktemp("cache")
    flags = ["--server-port=0", "--model-name=nano", f"--cache-path={cache}"]
    command = [sys.executable, "-m", "service", "serve", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stderr is not None
        ready = next((line for line in process.stderr if "Ready after" in line), None)
        assert ready is not None, "the server ended before it was ready"
        reader = threading.Thread(target=process.stderr.read)  # a full pipe would block the server
        reader.start()
        (checkpoint,) = (cache / "models").glob("nano-*")
        yield ready.split(" on ")[-1].strip(), checkpoint
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
        reader.join(PATIENCE_S)


def run(folder: Path, url: str, *command: str) -> str:
    """Run a program of the evaluations' environment to its end; what it said."""
    environment = {
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(folder),
        "HF_HUB_OFFLINE": "1",
        "LANG": "C.UTF-8",
        "OPENAI_API_KEY": "unused",
        "OPENAI_BASE_URL": f"{url}/v1",
    }
    ended = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def likelihoods(checkpoint: Path) -> list[list[float]]:
    """By transformers, the log-likelihood of every choice."""
    from transformers import GptOssForCausalLM

    model = GptOssForCausalLM.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="eager"
    )
    found = []
    for row in QUESTIONS:
        context = encode_marked(row["question"])
        scores = []
        for choice in row["choices"]:
            ids = encode_marked(row["question"] + choice)
            with torch.inference_mode():
                logprobs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
            places = range(len(context) - 1, len(ids) - 1)
            scores.append(sum(float(logprobs[i, ids[i + 1]]) for i in places))
        found.append(scores)
    return found


def test_log_likelihoods_of_lm_eval_are_those_of_transformers(
    nano: tuple[str, Path], tmp_path: Path
) -> None:
    url, checkpoint = nano
    rows = "\n".join(map(json.dumps, QUESTIONS))
    (tmp_path / "facts.jsonl").write_text(rows)
    (tmp_path / "facts.yaml").write_text(TASK.format(folder=tmp_path))
    writer = str(HERE / "write_tokenizer.py")
    subprocess.run([sys.executable, writer, str(tmp_path / "tokenizer")], check=True)
    expected = likelihoods(checkpoint)
    for backend in ("remote", "huggingface,tokenizer=tokenizer"):
        out = tmp_path / backend[:6]
        arguments = f"model=nano,base_url={url}/v1/completions,tokenizer_backend={backend}"
        said = run(
            tmp_path, url, "lm_eval", "--model", "local-completions", "--model_args", arguments,
            "--tasks", "facts", "--include_path", str(tmp_path), "--log_samples",
            "--output_path", str(out),
        )  # fmt: skip
        assert re.search(r"\|facts\|.*\|acc", said), said
        (samples,) = out.glob("*/samples_facts_*.jsonl")
        found = {}
        for sample in map(json.loads, samples.read_text().splitlines()):
            found[sample["doc_id"]] = [float(resp[0][0]) for resp in sample["resps"]]
        for index, scores in enumerate(expected):
            assert found[index] == pytest.approx(scores, abs=MARGIN)


@pytest.mark.parametrize("sampler", ["responses", "chat_completions"])
def test_openais_evals_score(nano: tuple[str, Path], tmp_path: Path, sampler: str) -> None:
    url, _ = nano
    said = run(
        tmp_path, url, "python", "-m", "gpt_oss.evals", "--base-url", f"{url}/v1", "--model",
        "nano", "--eval", "basic", "--sampler", sampler, "--reasoning-effort", "low",
        "--n-threads", "1",
    )  # fmt: skip
    for report in re.findall(r"Writing .* to (/tmp/basic_nano\S+)", said):  # it has no other place
        Path(report).unlink(missing_ok=True)
    assert "'metric': 1.0" in said, said


@pytest.mark.parametrize("api", ["true", "false"])
def test_inspect_scores(nano: tuple[str, Path], tmp_path: Path, api: str) -> None:
    url, _ = nano
    (tmp_path / "about.py").write_text(INSPECT)
    said = run(
        tmp_path, url, "inspect", "eval", "about.py", "--model", "openai/nano", "--temperature",
        "0", "--display", "plain", "-M", f"responses_api={api}", "--log-dir", str(tmp_path),
    )  # fmt: skip
    assert re.search(r"accuracy:?\s+1", said), said
