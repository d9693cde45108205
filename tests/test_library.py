"""`from harmonium import LLM`: the engine without a server."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from engines.base import FinishReason, SamplingParams
from engines.errors import InvalidRequest
from engines.parts import folders

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


def test_adapters_answer_as_themselves(cache: Path, tmp_path: Path) -> None:
    """Nano's own reading of its adapters is tested in tests/parts/lora; here, that they are used,
    that more come than have a place, and that none is left in the cache."""
    if "lora" not in folders():
        pytest.skip("the part with adapters was removed")
    from harmonium import LLM
    from tests.parts.lora.test_served import write

    for seed, name in enumerate(("french", "law"), 1):
        write(tmp_path / name, seed)
    talk, sampling = [[{"role": "user", "content": "Hello"}]], SamplingParams(20, temperature=0)
    llm = LLM("nano", peft_source=tmp_path, max_gpu_loras=1)
    names = (None, "french", "law", None, "french", "law")
    found = [llm.chat(talk, sampling, name)[0].token_ids for name in names]
    assert found[:3] == found[3:]
    assert len({*found}) == 3
    assert llm.generate(["Hello"], sampling, "law") != llm.generate(["Hello"], sampling)
    with pytest.raises(InvalidRequest, match=r"adapter_config.json: No such file"):
        llm.chat(talk, sampling, "greek")
    with pytest.raises(InvalidRequest, match="peft_source names no folder of adapters"):
        LLM("nano").chat(talk, sampling, "french")


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
