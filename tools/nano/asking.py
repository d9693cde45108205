"""How nano is asked when it is measured: by the native engine, from the expanded files."""

from __future__ import annotations

from pathlib import Path

from engines.base import EngineRequest, FinishReason, SamplingParams
from engines.grammar.tree import Grammar
from engines.native.config import Device, NativeConfig
from engines.native.engine import NativeEngine
from service.harmony.render import render
from service.harmony.vocabulary import STOP_TOKEN_IDS
from tools.nano.dialogues import Turn

SEED = 11
_MAX_TOKENS = 400


async def generate(
    engine: NativeEngine,
    turn: Turn,
    temperature: float,
    seed: int = SEED,
    grammar: Grammar | None = None,
) -> tuple[list[int], bool]:
    """Return the ids generated for a turn and whether the model ended by itself."""
    prompt = tuple(render(turn.prompt))
    sampling = SamplingParams(max_tokens=_MAX_TOKENS, temperature=temperature, seed=seed)
    request = EngineRequest(str(id(turn)), prompt, sampling, STOP_TOKEN_IDS, grammar)
    ids: list[int] = []
    is_stopped = False
    async for event in engine.generate(request):
        ids += event.token_ids
        is_stopped = event.finish_reason is FinishReason.STOP
    return ids, is_stopped


def config_for(checkpoint: Path, device: Device) -> NativeConfig:
    """What the report is generated with."""
    if device == "cuda":
        return NativeConfig(
            checkpoint, device, "bfloat16", max_model_len=4096, max_num_seqs=256,
            max_num_batched_tokens=2048, num_kv_blocks=8192, overlap_steps=True,
        )  # fmt: skip
    return NativeConfig(checkpoint, num_kv_blocks=4096)
