"""`from harmonium import LLM`: the engine without a server."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from engines.base import FinishReason, SamplingParams
from engines.errors import InvalidRequest

pytestmark = pytest.mark.heavy
EXAMPLE = Path(__file__).parents[1] / "docs" / "examples" / "library.py"


@pytest.fixture
def cache(nano_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NIM_CACHE_PATH", str(nano_cache))
    return nano_cache


def test_the_example_runs(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLE))
    printed = capsys.readouterr().out
    assert "What is the capital of France? -> Paris." in printed
    assert "Cached tokens of the second run: [64, 64]" in printed


def test_prompts_of_a_call_are_answered_as_each_alone(cache: Path) -> None:
    from harmonium import LLM

    llm = LLM("nano")
    conversations = [
        [{"role": "user", "content": text}] for text in ("Hello", "What is your name?", "Hello")
    ]
    sampling = SamplingParams(max_tokens=60, temperature=0)
    together = llm.chat(conversations, sampling)
    alone = [llm.chat([each], sampling)[0] for each in conversations]
    assert [each.token_ids for each in together] == [each.token_ids for each in alone]
    assert together[0].text == together[2].text != ""
    assert together[0].finish_reason is FinishReason.STOP
    [cut] = llm.generate([[13903, 220]], SamplingParams(max_tokens=3))
    assert (len(cut.token_ids), cut.finish_reason) == (3, FinishReason.LENGTH)
    with pytest.raises(InvalidRequest, match="prompt_token_ids is empty"):
        llm.generate(["Hello", []], sampling)
    assert llm.chat(conversations[:1], sampling)[0].token_ids == alone[0].token_ids
