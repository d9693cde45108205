"""What the engine makes of the fixed texts, and what transformers does."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import msgspec

from engines.adding import command_for
from engines.base import Engine, EngineRequest, SamplingParams
from engines.errors import EngineStartError
from engines.process.supervisor import EngineSupervisor
from parts.verify.report import Measured
from parts.verify.texts import prompts, texts
from service.chat_format import ChatFormat
from service.run.pythons import python_of
from service.run.startup import Launch, environments_of
from service.settings.settings import Settings

MAX_TOKENS: Final = 48  # of a greedy answer
_FORCED: Final = 100.0  # a bias with which a token is chosen; log-probabilities are without it
_DTYPES: Final = {"mxfp4": "bfloat16", "bf16": "bfloat16", "fp32": "float32"}


async def by_engine(settings: Settings, launch: Launch) -> Measured:
    """Start the engine, ask it, stop it; raises EngineStartError."""
    supervisor = EngineSupervisor(
        launch.spec,
        environment=environments_of(launch)[0],
        python=python_of(settings, launch.spec.engine),
    )
    try:
        await supervisor.start()
        engine = supervisor.client()
        await engine.start()
        try:
            return await _measured(engine, launch.format)
        finally:
            await engine.stop()
    finally:
        await supervisor.stop()


async def _measured(engine: Engine, format: ChatFormat) -> Measured:
    stop = format.stop_token_ids
    answers = [await _answer(engine, prompt, stop) for prompt in prompts(format)]
    scores = []
    for prompt, text in zip(prompts(format), texts(format), strict=True):
        asked = (_score(engine, (*prompt, *text[:at]), text[at]) for at in range(len(text)))
        scores.append(tuple(await asyncio.gather(*asked)))
    info = engine.info
    return Measured(f"{info.engine} {info.version}", tuple(scores), tuple(answers))


async def _answer(
    engine: Engine, prompt: tuple[int, ...], stop_token_ids: tuple[int, ...]
) -> tuple[int, ...]:
    sampling = SamplingParams(MAX_TOKENS, temperature=0.0)
    request = EngineRequest("verify", prompt, sampling, stop_token_ids)
    events = engine.generate(request)
    return tuple([token async for event in events for token in event.token_ids])


async def _score(engine: Engine, before: tuple[int, ...], token: int) -> float:
    """The log-probability of a token after others: it is forced, and costs one step."""
    sampling = SamplingParams(1, temperature=0.0, logprobs=0, logit_bias={token: _FORCED})
    events = engine.generate(EngineRequest("verify", before, sampling))
    found = [entry async for event in events for entry in event.logprobs or ()]
    if [entry.token_id for entry in found] != [token]:
        raise EngineStartError("the engine returned another token than the forced one")
    return found[0].logprob


async def by_transformers(python: Path, launch: Launch) -> tuple[Measured, list[Any]]:
    """Ask transformers in a process of its own; its margins by answer come beside it.

    Raises EngineStartError with its last words.
    """
    profile = launch.selection.chosen.profile
    question = {
        "model_dir": str(launch.model_dir),
        "dtype": _DTYPES[profile.precision],
        "is_rounded": profile.is_rounded,
        "prompts": prompts(launch.format),
        "texts": texts(launch.format),
        "max_tokens": MAX_TOKENS,
        "stop_token_ids": launch.format.stop_token_ids,
    }
    pipe = asyncio.subprocess.PIPE
    command = str(python), "-P", "-m", "parts.verify.reference"
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
    written, said = await process.communicate(msgspec.json.encode(question))
    if process.returncode:
        words = (said.decode(errors="replace").strip() or "it said nothing").splitlines()[-1]
        hint = f"; {command_for('verify')}" if "No module named" in words else ""
        raise EngineStartError(f"transformers cannot run in {python}: {words}{hint}")
    reply = msgspec.json.decode(written)
    answers = tuple(tuple(answer["token_ids"]) for answer in reply["answers"])
    weights = "experts rounded to MXFP4, " if profile.is_rounded else ""
    name = f"transformers {reply['version']} ({weights}{reply['dtype']}, {reply['device']})"
    logprobs = tuple(map(tuple, reply["logprobs"]))
    measured = Measured(name, logprobs, answers, is_exact=reply["dtype"] == "float32")
    return measured, [answer["margins"] for answer in reply["answers"]]
