"""What an engine cannot do is refused by name and never sent to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engines.base import MAY_LACK, Adapter, Capabilities, EngineRequest, SamplingParams
from engines.errors import InvalidGrammar, InvalidRequest
from engines.fields import RepetitionDetection
from engines.grammar.tree import Concatenation, Lark, Repeat, Text
from engines.validation import check_capabilities
from tools.docs.engines import capabilities, render

DOCS = Path(__file__).parents[2] / "docs"
SAMPLING: dict[str, Any] = {
    "seed": 0,
    "top_k": 5,
    "min_p": 0.1,
    "min_tokens": 1,
    "logit_bias": {1: 1.0},
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "repetition_penalty": 1.1,
    "prompt_logprobs": 0,
    "repetition_detection": RepetitionDetection(8, 3),
}
OUTER: dict[str, Any] = {
    "grammar": Text(None),
    "cache_salt": "",
    "adapter": Adapter("a", "/a", "1"),
    "continuation": (5, 6),
    "exact_continuation": (5, 6),
}


def request_of(**wishes: Any) -> EngineRequest:
    sampling = {key: wishes.pop(key) for key in [*wishes] if key not in OUTER}
    if "exact_continuation" in wishes:
        wishes["continuation"], sampling["seed"] = wishes.pop("exact_continuation"), 5
    wishes["generated_token_ids"] = wishes.pop("continuation", ())
    return EngineRequest("r", (1,), SamplingParams(4, **sampling), stop_token_ids=(2,), **wishes)


@pytest.mark.parametrize("name", [*SAMPLING, *OUTER])
def test_each_wish_is_refused_where_it_is_not_supported(name: str) -> None:
    assert {*SAMPLING, *OUTER} == MAY_LACK
    request = request_of(**{name: (SAMPLING | OUTER)[name]})
    check_capabilities(request, Capabilities())
    lacking = Capabilities(frozenset({name}))
    with pytest.raises(InvalidRequest, match=f"^{name} is .*leave it out$"):
        check_capabilities(request, lacking)
    check_capabilities(request_of(), lacking)


def test_a_grammar_is_refused_as_a_grammar() -> None:
    with pytest.raises(InvalidGrammar):
        check_capabilities(request_of(grammar=Text(None)), Capabilities(frozenset({"grammar"})))


def test_a_dialect_is_refused_wherever_it_stands_in_a_grammar() -> None:
    grammar = Concatenation((Text(None), Repeat(Lark("start: /a/"))))
    check_capabilities(request_of(grammar=grammar), Capabilities(dialects=("lark",)))
    with pytest.raises(InvalidGrammar, match=r"dialects is lark, .* use json_schema or regex"):
        check_capabilities(
            request_of(grammar=grammar), Capabilities(dialects=("json_schema", "regex"))
        )


@pytest.mark.parametrize(("logprobs", "is_refused"), [(None, False), (0, False), (3, True)])
def test_more_logprobs_than_there_are_are_refused(logprobs: int | None, is_refused: bool) -> None:
    request, two = request_of(logprobs=logprobs), Capabilities(max_logprobs=2)
    if is_refused:
        with pytest.raises(InvalidRequest, match=r"logprobs is 3, .* use at most 2"):
            check_capabilities(request, two)
    else:
        check_capabilities(request, two)


@pytest.mark.heavy
async def test_the_engine_process_says_what_it_cannot_do(
    start_engine: Any, start_client: Any
) -> None:
    client = await start_client(await start_engine(capabilities={"lacks": ["seed"]}))
    with pytest.raises(InvalidRequest, match="seed"):
        await anext(client.generate(request_of(seed=1)))
    assert (await client.stats()).prompt_tokens == 0
    assert [event async for event in client.generate(request_of())]


def test_no_engine_lacks_what_none_can() -> None:
    assert all(can.lacks <= MAY_LACK for can in capabilities().values())


def test_the_page_says_what_each_engine_can_do() -> None:
    assert (DOCS / "engines.md").read_text() == render(capabilities()), "run make docs"
