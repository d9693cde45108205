"""The adapter on a stand-in of TensorRT-LLM: start, stream, abort, statistics, deaths, the end."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import llguidance
import pytest

from engines.base import EngineRequest, FinishReason, SamplingParams, TokenEvent
from engines.errors import (
    EngineDead,
    EngineStartError,
    InvalidGrammar,
    InvalidRequest,
    RequestFailed,
)
from engines.factory import create, installed_engines
from engines.grammar.llguidance import llguidance_lark
from engines.grammar.tree import Concatenation, JsonSchema, Token
from engines.guest.outputs import UNLIKELY
from engines.guest.tokenizer import tokenizer_folder
from engines.native.grammar.compiler import lark_of_gbnf
from engines.spec import EngineSpec
from engines.tensorrt_llm import release
from engines.tensorrt_llm.arguments import CAPABILITIES
from engines.tensorrt_llm.engine import TrtLlmEngine
from engines.tensorrt_llm.requests import sampling_of
from tests.engines.tensorrt_llm.conftest import VOCAB_SIZE
from tests.engines.tensorrt_llm.stand_in import (
    SURFACE,
    Plan,
    RequestError,
    iteration,
)

PROMPT = (21, 22, 23)


def request(**changes: Any) -> EngineRequest:
    sampling = changes.pop("sampling", SamplingParams(max_tokens=4))
    return EngineRequest("r", PROMPT, sampling, **changes)


@asynccontextmanager
async def running(spec: EngineSpec) -> AsyncIterator[TrtLlmEngine]:
    engine = TrtLlmEngine(spec)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def answer(engine: TrtLlmEngine, request: EngineRequest) -> list[TokenEvent]:
    return [event async for event in engine.generate(request)]


@pytest.mark.heavy
async def test_a_start_says_what_is_served_and_grammars_get_our_vocabulary(
    library: Plan, guided: EngineSpec
) -> None:
    async with running(guided) as engine:
        info, given = engine.info, library.llms[0].given
    assert (info.engine, info.version, info.vocab_size) == ("tensorrt_llm", "1.2.1", VOCAB_SIZE)
    assert (info.max_model_len, info.max_num_seqs, info.max_num_batched_tokens) == (256, 8, 64)
    assert info.capabilities == CAPABILITIES
    assert given["guided_decoding_backend"] == "llguidance"
    tokenizer = json.loads((Path(given["tokenizer"]) / "tokenizer.json").read_text())
    assert len(tokenizer["model"]["vocab"]) == 256
    assert library.llms[0].num_shutdowns == 1


async def test_without_a_vocabulary_there_is_no_tokenizer_and_no_grammar(
    library: Plan, spec: EngineSpec
) -> None:
    async with running(replace(spec, limits={})) as engine:
        assert "grammar" in engine.info.capabilities.lacks
        assert engine.info.max_model_len == 256  # of config.json
    assert library.llms[0].given["skip_tokenizer_init"]


async def test_ranks_of_attention_data_parallelism_add_up(library: Plan, spec: EngineSpec) -> None:
    wide = replace(spec, num_devices=4, tensor_parallel=4, attention_dp=True)
    async with running(wide) as engine:
        assert (engine.info.max_num_seqs, engine.info.max_num_batched_tokens) == (32, 256)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"fails_to_start": RuntimeError("Only 0 GPUs are available")}, "RuntimeError: Only 0"),
        ({}, "TensorRT-LLM 1.2.1 option 'max_sequence_len' is unknown; did you mean 'max_seq_len'"),
    ],
)
async def test_a_start_that_fails_says_why(
    library: Plan, spec: EngineSpec, change: dict[str, Any], reason: str
) -> None:
    library.__dict__.update(change)
    spec = spec if change else replace(spec, options={"max_sequence_len": 4})
    with pytest.raises(EngineStartError, match=reason):
        await TrtLlmEngine(spec).start()


async def test_another_release_is_named(
    library: Plan, spec: EngineSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["tensorrt_llm"], "__version__", "1.1.0")
    with pytest.raises(EngineStartError, match=r"TensorRT-LLM 1\.1\.0 is here, and 1\.2 or 1\.3"):
        await TrtLlmEngine(spec).start()


@pytest.mark.parametrize(
    ("here", "is_wanted"),
    [("1.2.1", True), ("1.3.0rc27", True), ("1.1.0", False), ("1.4.0", False), ("0.21.0", False)],
)
def test_releases_that_the_adapter_knows(here: str, is_wanted: bool) -> None:
    assert release.is_wanted(here) is is_wanted


def test_what_is_importable_is_installed_unless_its_release_is_another(
    library: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert installed_engines()["tensorrt_llm"] is None
    monkeypatch.setattr(release, "version", lambda name: "0.21.0")
    why = str(installed_engines()["tensorrt_llm"])
    assert why.startswith("not installed: TensorRT-LLM 0.21.0 is here, and 1.2 or 1.3 is needed")
    with pytest.raises(EngineStartError, match=r"0\.21\.0 is here"):
        create(EngineSpec("tensorrt_llm"))


async def test_tokens_stream_to_a_stop_id_or_the_limit(library: Plan, spec: EngineSpec) -> None:
    async with running(spec) as engine:
        events = await answer(engine, request())
        ids = [id for event in events for id in event.token_ids]
        assert len(ids) == 4
        assert events[-1].finish_reason is FinishReason.LENGTH
        stopped = await answer(engine, request(stop_token_ids=(ids[1],)))
        assert [id for event in stopped for id in event.token_ids] == ids[:2]
        assert stopped[-1].finish_reason is FinishReason.STOP
        rest = await answer(engine, request(generated_token_ids=tuple(ids[:2])))
        assert [id for event in rest for id in event.token_ids] == ids[2:]
        library.burst = 3  # as with speculation, or a stream_interval
        assert [len(e.token_ids) for e in await answer(engine, request())] == [3, 1]


def test_every_wish_is_handed_on_or_refused_before() -> None:
    sampling = SamplingParams(
        max_tokens=40, temperature=0.5, top_p=0.9, top_k=5, logit_bias={3: -2.0}, logprobs=2
    )
    given = sampling_of(request(sampling=sampling, stop_token_ids=(8, 9)), None, VOCAB_SIZE)
    assert given.keys() <= SURFACE["classes"]["SamplingParams"].keys()
    bias = given.pop("embedding_bias")
    assert (bias.shape, bias[3], bias.abs().sum()) == ((VOCAB_SIZE,), -2.0, 2.0)
    for field in fields(SamplingParams):
        if field.name in ("max_tokens", "temperature", "top_p", "top_k"):
            assert given[field.name] == getattr(sampling, field.name)
        elif field.name not in ("logit_bias", "logprobs"):
            assert field.name in CAPABILITIES.lacks
    assert given["logprobs"] == 20 == CAPABILITIES.max_logprobs
    assert given["stop_token_ids"] == [8, 9]
    assert given["include_stop_str_in_output"]
    assert given["ignore_eos"]  # an answer ends where the request says
    assert not given["detokenize"]


async def test_a_salt_reaches_it_and_the_empty_one_is_one(library: Plan, spec: EngineSpec) -> None:
    async with running(spec) as engine:
        for salt in (None, "", "a"):
            await answer(engine, request(cache_salt=salt))
        salts = [call["cache_salt"] for call in library.llms[0].calls]
    assert len({*salts}) == 3
    assert salts[0] is None


async def test_logprobs_are_the_chosen_ones_and_the_likeliest(
    library: Plan, spec: EngineSpec
) -> None:
    async with running(spec) as engine:
        events = await answer(engine, request(sampling=SamplingParams(6, logprobs=1)))
    found = [entry for event in events for entry in event.logprobs or ()]
    assert len(found) == 6
    for entry in found:
        likely = entry.token_id % 2 == 0
        assert entry.logprob == (-0.5 if likely else UNLIKELY)
        assert entry.top == (((entry.token_id, -0.5),) if likely else ((1, -1.0),))


@pytest.mark.heavy
async def test_a_grammar_is_one_text_in_larks_syntax_that_ends_with_the_stop_id(
    library: Plan, guided: EngineSpec
) -> None:
    schema = JsonSchema('{"type":"object","additionalProperties":false}')
    async with running(guided) as engine:
        await answer(engine, request(grammar=schema, stop_token_ids=(300,)))
        with pytest.raises(InvalidGrammar, match="regex"):
            await answer(
                engine, request(grammar=JsonSchema('{"pattern":"("}'), stop_token_ids=(300,))
            )
    [call] = library.llms[0].calls
    guide = call["sampling_params"].guided_decoding.grammar
    assert "%json" in guide
    assert "<[300]>" in guide
    assert call["sampling_params"].stop_token_ids == [300, VOCAB_SIZE - 1]


@pytest.mark.parametrize(
    ("finish", "reason"),
    [("cancelled", "ended the request: cancelled"), ("stop", "no token is allowed")],
)
async def test_an_end_that_is_none_is_an_error(
    library: Plan, spec: EngineSpec, finish: str, reason: str
) -> None:
    library.ends_as = finish
    async with running(spec) as engine:
        with pytest.raises(RequestFailed, match=reason):
            await answer(engine, request())


async def test_closing_an_answer_aborts_it(library: Plan, spec: EngineSpec) -> None:
    async with running(spec) as engine:
        stream = engine.generate(request(sampling=SamplingParams(200)))
        await anext(stream)
        await stream.aclose()
        async with asyncio.timeout(10):
            while not library.llms[0].results[0].is_aborted:
                await asyncio.sleep(0)
        assert (await engine.stats()).num_running == 0
        assert len(await answer(engine, request())) == 4


async def test_an_error_of_a_request_is_its_own(library: Plan, spec: EngineSpec) -> None:
    async with running(spec) as engine:
        library.error = RequestError("no K/V blocks")
        with pytest.raises(RequestFailed, match="no K/V blocks"):
            await answer(engine, request())
        library.refusal = ValueError("the prompt is too long")
        with pytest.raises(InvalidRequest, match="refuses the request: the prompt is too long"):
            await answer(engine, request())
        library.error = library.refusal = None
        await engine.check_health()
        assert len(await answer(engine, request())) == 4


@pytest.mark.heavy
async def test_a_grammar_that_it_refuses_after_all_is_refused_as_one(
    library: Plan, guided: EngineSpec
) -> None:
    schema = JsonSchema('{"type":"object","additionalProperties":false}')
    library.error = RequestError("LLGuidance matcher error: too complex")
    async with running(guided) as engine:
        with pytest.raises(InvalidGrammar, match="too complex"):
            await answer(engine, request(grammar=schema, stop_token_ids=(300,)))


async def test_any_other_error_is_its_death(library: Plan, spec: EngineSpec) -> None:
    library.error = RuntimeError("MPI worker is gone")
    async with running(spec) as engine:
        with pytest.raises(EngineDead, match="MPI worker is gone"):
            await answer(engine, request())
        with pytest.raises(EngineDead, match="MPI worker is gone"):
            await engine.check_health()


async def test_steps_that_fail_one_after_the_other_are_its_death(
    library: Plan, spec: EngineSpec
) -> None:
    """As after an illegal access to memory: each request fails by itself, and all do."""
    library.error, library.good = RequestError("CUDA error: an illegal memory access"), 0
    async with running(spec) as engine:

        async def fail(num_together: int, error: type[Exception]) -> None:
            asked = [answer(engine, request()) for _ in range(num_together)]
            outcomes = await asyncio.gather(*asked, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [error] * num_together

        await fail(8, RequestFailed)  # one step with eight requests
        await fail(1, RequestFailed)
        await engine.check_health()
        library.error = None
        assert len(await answer(engine, request())) == 4  # a token: the count begins again
        library.error = RequestError("CUDA error: an illegal memory access")
        await fail(3, RequestFailed)
        await fail(1, RequestFailed)
        await engine.check_health()
        await fail(1, EngineDead)
        with pytest.raises(EngineDead, match=r"3 steps failed .*illegal memory access"):
            await engine.check_health()


async def test_its_own_health_check_is_asked_where_there_is_one(
    library: Plan, spec: EngineSpec
) -> None:
    async with running(spec) as engine:
        llm: Any = library.llms[0]
        llm._check_health = lambda: True
        await engine.check_health()
        llm._check_health = lambda: False
        with pytest.raises(EngineDead, match="its health check fails"):
            await engine.check_health()


async def test_statistics_of_steps_and_requests_add_up(
    library: Plan, spec: EngineSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engines.tensorrt_llm.engine._STATS_PAUSE_S", 0.001)
    library.iterations = [
        iteration(queued=2, used=10, blocks=100),
        iteration(queued=1, paused=1, used=40, blocks=100),
    ]
    async with running(spec) as engine:
        stream = engine.generate(request(sampling=SamplingParams(200)))
        await anext(stream)
        async with asyncio.timeout(10):
            while (stats := await engine.stats()).num_steps < 2:
                await anext(stream)
        assert (stats.num_kv_blocks, stats.num_free_kv_blocks, stats.kv_block_size) == (100, 60, 32)
        assert (stats.num_running, stats.num_waiting) == (0, 1)  # no more wait than there are
        assert stats.num_preemptions == 1
        assert (stats.prompt_tokens, stats.prefix_cache_queries) == (3, 3)
        assert stats.generated_tokens >= 1
        await stream.aclose()
        assert (await engine.stats()).num_free_kv_blocks == 100


async def test_stopping_ends_what_runs_and_may_be_repeated(library: Plan, spec: EngineSpec) -> None:
    engine = TrtLlmEngine(spec)
    with pytest.raises(EngineDead):
        _ = engine.info
    await engine.start()
    stream = engine.generate(request(sampling=SamplingParams(200)))
    await anext(stream)
    await engine.stop()
    with pytest.raises(EngineDead):
        async for _ in stream:
            pass
    await engine.stop()
    with pytest.raises(EngineDead):
        await engine.check_health()
    assert library.llms[0].num_shutdowns == 1


def test_its_matcher_follows_our_text_over_our_tokenizer(folder: Path) -> None:
    """As pyexecutor/grammar_matcher.py makes it and asks it."""
    tokenizer = (tokenizer_folder(folder / "vocabulary", VOCAB_SIZE) / "tokenizer.json").read_text()
    schema = JsonSchema('{"type":"object","additionalProperties":false}')
    text = llguidance_lark(Concatenation((schema, Token(300))), lark_of_gbnf)
    matcher = llguidance.LLMatcher(
        llguidance.LLTokenizer(tokenizer, n_vocab=VOCAB_SIZE, eos_token=VOCAB_SIZE - 1),
        llguidance.LLMatcher.grammar_from_lark(text),
    )
    assert not matcher.is_error(), matcher.get_error()
    assert matcher.try_consume_tokens([ord("["), 300]) == 0
    assert matcher.try_consume_tokens([ord("{"), ord("}"), 300]) == 3
    assert matcher.is_stopped()
