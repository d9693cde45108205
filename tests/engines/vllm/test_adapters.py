"""How adapters reach vLLM: the runner is ours, AsyncLLM a stand-in with its methods' names."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from engines.base import Adapter, EngineInfo, EngineRequest, SamplingParams
from engines.errors import EngineDead, InvalidRequest
from engines.spec import EngineSpec
from engines.vllm.arguments import arguments_of
from engines.vllm.engine import VllmRunner
from tests.engines.vllm.conftest import stand_in

CONFIG = {
    "hidden_size": 64, "head_dim": 16, "num_attention_heads": 8, "num_key_value_heads": 2,
    "num_hidden_layers": 2,
}  # fmt: skip


@dataclass
class LoRARequest:
    """vllm.lora.request.LoRARequest's fields."""

    lora_name: str
    lora_int_id: int
    lora_path: str


class StandIn:
    """AsyncLLM: what it was given; it refuses adapters in `/wrong`."""

    def __init__(self) -> None:
        self.added: list[LoRARequest] = []
        self.served: list[LoRARequest | None] = []
        self.is_dead = False

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        if lora_request.lora_path == "/wrong":
            raise ValueError("is not for this model")
        self.added.append(lora_request)
        return True

    async def generate(
        self,
        prompt: Any,
        sampling_params: Any,
        request_id: str,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
    ) -> AsyncIterator[Any]:
        self.served.append(lora_request)
        completion = stand_in(
            "CompletionOutput", token_ids=[7], finish_reason="length", logprobs=None
        )
        yield stand_in(
            "RequestOutput",
            outputs=[completion],
            num_cached_tokens=0,
            metrics=None,
            prompt_logprobs=None,
        )

    async def check_health(self) -> None:
        if self.is_dead:
            raise RuntimeError("EngineCore is gone")

    def shutdown(self) -> None:
        """Nothing runs."""


class Runner(VllmRunner):
    """The adapter's runner around a stand-in."""

    llm: StandIn

    def _load(self) -> EngineInfo:
        self._config = CONFIG
        self.llm = StandIn()
        self._llm = self.llm
        return EngineInfo("vllm", "0", 100, 100, 4)


@pytest.fixture
async def runner(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Runner]:
    vllm, lora, module = (ModuleType(name) for name in ("vllm", "vllm.lora", "vllm.lora.request"))
    module.LoRARequest = LoRARequest  # type: ignore[attr-defined]
    params = ModuleType("vllm.sampling_params")
    params.SamplingParams = SimpleNamespace  # type: ignore[attr-defined]
    params.RequestOutputKind = SimpleNamespace(DELTA=2)  # type: ignore[attr-defined]
    vllm.sampling_params = params  # type: ignore[attr-defined]
    for each in (vllm, lora, module, params):
        monkeypatch.setitem(sys.modules, each.__name__, each)
    spec = EngineSpec("vllm", model_dir="/model")
    made = Runner(spec, arguments_of(spec))
    await made.start()
    yield made
    await made.stop()


def request(adapter: Adapter | None) -> EngineRequest:
    return EngineRequest("r", (1, 2), SamplingParams(1), adapter=adapter)


async def run(runner: Runner, asked: EngineRequest) -> None:
    prepared = await runner.prepare(asked)
    events: list[Any] = []
    runner.begin(prepared, events.append, 0.0)
    assert prepared.following is not None
    await prepared.following
    assert [event.token_ids for event in events] == [(7,)]


async def test_vllm_has_an_adapter_before_its_request_and_knows_it_by_its_content(
    runner: Runner,
) -> None:
    french, law = Adapter("french", "/f", "1"), Adapter("law", "/l", "2")
    newer = Adapter("french", "/f", "3")  # the same folder, with other weights
    for adapter in (french, law, french, newer):
        await run(runner, request(adapter))
    assert [each.lora_int_id for each in runner.llm.added] == [1, 2, 1, 3]
    assert runner.llm.served == runner.llm.added
    assert (runner.llm.added[1].lora_name, runner.llm.added[1].lora_path) == ("law", "/l")
    await run(runner, request(None))
    assert runner.llm.served[-1] is None


@pytest.mark.parametrize(
    ("module", "sides", "said"),
    [
        ("layers.0.self_attn.q_proj", (128, 64), None),
        ("layers.1.self_attn.k_proj", (32, 64), None),
        ("layers.1.self_attn.o_proj", (64, 128), None),
        ("layers.0.mlp.router", (9, 9), None),  # vLLM's own to judge
        ("layers.0.self_attn.q_proj", (96, 48), "64 inputs and 128 outputs there"),
        ("layers.0.self_attn.v_proj", (128, 64), "64 inputs and 32 outputs there"),
        ("layers.2.self_attn.q_proj", (128, 64), "this model has 2 layers"),
    ],
)
async def test_an_adapter_of_another_model_is_refused_before_vllm_takes_it(
    runner: Runner, tmp_path: Path, module: str, sides: tuple[int, int], said: str | None
) -> None:
    """vLLM 0.32 takes one, and its answers are nonsense."""
    (num_out, num_in), stored = sides, f"base_model.model.model.{module}"
    tensors = {
        f"{stored}.lora_A.weight": np.zeros((8, num_in), np.float32),
        f"{stored}.lora_B.weight": np.zeros((num_out, 8), np.float32),
    }
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    asked = request(Adapter("french", str(tmp_path), "1"))
    if said is None:
        await run(runner, asked)
        return
    for _ in range(2):
        with pytest.raises(InvalidRequest, match=f"'french' cannot be used: .*{said}"):
            await runner.prepare(asked)
    assert runner.llm.added == []


async def test_an_adapter_that_vllm_refuses_costs_its_request_alone(runner: Runner) -> None:
    with pytest.raises(InvalidRequest, match="'wrong': is not for this model"):
        await runner.prepare(request(Adapter("wrong", "/wrong", "1")))
    await run(runner, request(None))
    runner.llm.is_dead = True
    with pytest.raises(EngineDead, match="EngineCore is gone"):
        await runner.prepare(request(Adapter("wrong", "/wrong", "1")))
