"""A request that cannot run is refused in words that say which value to change."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest

from engines.base import EngineRequest
from engines.errors import InvalidRequest, PromptTooLong
from engines.validation import check_request


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": ()}, "prompt_token_ids is empty"),
        ({"prompt": (1, 50)}, "prompt_token_ids has 50, which is outside the vocabulary of 50"),
        ({"prompt": (-1, 3)}, "prompt_token_ids has -1"),
        ({"stop_token_ids": (3, 99)}, "stop_token_ids has 99"),
        ({"max_tokens": 0}, "max_tokens is 0; use 1 or more"),
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": nan}, "temperature is nan"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"top_k": -1}, "top_k is -1"),
        ({"min_p": 1.5}, "min_p is 1.5"),
        ({"presence_penalty": 2.5}, "presence_penalty is 2.5; use -2 to 2"),
        ({"frequency_penalty": -3.0}, "frequency_penalty is -3.0"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
        ({"logit_bias": {50: 1.0}}, "logit_bias has 50"),
        ({"logit_bias": {5: inf}}, r"logit_bias\[5\] is inf"),
        ({"logprobs": -1}, "logprobs is -1"),
        ({"logprobs": 51}, "logprobs is 51; use 0 to 50"),
    ],
)
def test_bad_requests_are_named(
    options: dict[str, Any], message: str, make_request: Callable[..., EngineRequest]
) -> None:
    request = make_request(options.pop("prompt", (1,)), **options)
    with pytest.raises(InvalidRequest, match=message):
        check_request(request, vocab_size=50, max_model_len=100)


def test_the_prompt_must_leave_room_for_an_answer(
    make_request: Callable[..., EngineRequest],
) -> None:
    check_request(make_request([1] * 99, 500), vocab_size=50, max_model_len=100)
    with pytest.raises(PromptTooLong, match="100 tokens and the context length is 100"):
        check_request(make_request([1] * 100), vocab_size=50, max_model_len=100)


def test_all_that_the_api_offers_is_taken(make_request: Callable[..., EngineRequest]) -> None:
    request = make_request(
        [0, 49],
        temperature=2.0,
        top_p=0.1,
        top_k=5,
        min_p=0.1,
        presence_penalty=-2.0,
        frequency_penalty=2.0,
        repetition_penalty=1.2,
        logit_bias={3: -100.0},
        logprobs=20,
        seed=-(2**63),
        stop_token_ids=(0, 49),
        cache_salt="s",
    )
    check_request(request, vocab_size=50, max_model_len=100)
