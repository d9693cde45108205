"""Flags, commands, variables and routes of other servers are answered with what to do here."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parts.habits.answers import by_name
from service.__main__ import main
from service.cli import config_file
from service.run.startup import warn_of_unknown_names
from service.settings.errors import SettingsError

Fixture = Callable[..., Any]

GOLDEN = Path(__file__).parent / "golden"
SCRIPT = "<|channel|>final<|message|>Hi<|return|>"


@pytest.fixture
async def client(make_runtime: Fixture, make_client: Fixture) -> Any:
    return await make_client(make_runtime(SCRIPT))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "--gpu-memory-utilization", "0.9"], "--kvcache-percent"),
        (["serve", "--enable-lora"], "--peft-source"),
        (["serve", "--tool-call-parser", "openai"], "built in"),
        (["serve", "--api-key", "x"], "NIM_API_KEYS"),
        (
            ["serve", "-hf", "ggml-org/gpt-oss-20b-GGUF"],
            "option: -hf. Use --model-path hf:",
        ),
        (["serve", "-tp", "2", "-ngl", "99"], "No such option: -ngl. Not needed"),
        (["serve", "nano", "-dp", "2"], "--replicas N"),
        (["pull", "gpt-oss:20b"], "download-to-cache"),
        (["nim-optimize"], "build-engine"),
    ],
)
def test_a_flag_or_command_of_anothers_is_met_with_ours(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tool-call-parser: openai\nfoo: 1", "Not needed: Harmony, .* 'foo' is not a setting"),
        ("kv_cache_free_gpu_memory_fraction: 0.9", "Use --kvcache-percent"),
    ],
)
def test_so_is_a_line_of_a_file(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=said):
        config_file.read(file)


def test_every_flag_of_the_recipes_is_a_flag_or_answered(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Those of vLLM's, SGLang's and llama.cpp's recipes for gpt-oss."""
    main(["serve", "--help"])
    taken = {*re.findall(r"(?<![\w-])--?[a-z][a-z_-]*", capsys.readouterr().out)}
    names = (GOLDEN / "foreign_flags.txt").read_text(encoding="utf-8").split()
    assert [name for name in names if name not in taken | by_name("flags").keys()] == []


def test_foreign_variables_are_told_in_groups(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NIM_GPU_MEM_FRACTION", "0.8")
    monkeypatch.setenv("NIM_KV_CACHE_PERCENT", "0.8")
    warn_of_unknown_names()
    [told] = (record.getMessage() for record in caplog.records)
    assert told == "NIM_GPU_MEM_FRACTION, NIM_KV_CACHE_PERCENT: use NIM_KVCACHE_PERCENT"


@pytest.mark.parametrize(
    ("path", "instead"),
    [
        ("/v1/embeddings", "only text generation"),
        ("/v1/audio/speech", "text only"),
        ("/v1/threads/thread_1/runs", "previous_response_id"),
        ("/chat/completions", "Use /v1/chat/completions: the client's base URL ends in /v1"),
        ("/v1/v1/chat/completions", "Use /v1/chat/completions: the client adds /v1"),
        ("/v1/chat/completions/batch", "at once"),
        ("/v1/organization/costs", "GET /v1/metrics"),
        ("/inference/v1/generate", "/v1/completions"),
        ("/invocations", "/v1/chat/completions"),
        ("/v1/chat/completions/input_tokens", "POST /tokenize"),
        ("/generated", "GET /openapi.json"),
    ],
)
async def test_a_route_of_another_server_is_answered_with_ours(
    client: Any, path: str, instead: str
) -> None:
    response = await client.post(path, json={})
    assert response.status_code == 404
    assert instead in response.json()["error"]["message"]
