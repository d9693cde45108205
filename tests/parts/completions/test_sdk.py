"""The real openai SDK as a client of the older completions route."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, get_type_hints

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.completion_create_params import (
    CompletionCreateParamsNonStreaming,
    CompletionCreateParamsStreaming,
)

from parts.completions.schema import CompletionRequest

Serve = Callable[..., Awaitable[str]]

MODEL = "gpt-oss-20b"
TEXT = " a time, 🪿."


def test_no_field_of_the_published_schema_is_forgotten() -> None:
    published = {*get_type_hints(CompletionCreateParamsNonStreaming)}
    published |= {*get_type_hints(CompletionCreateParamsStreaming)}
    assert published <= {*CompletionRequest.model_fields}


@pytest.mark.parametrize("prompt", ["Once upon", ["Once upon"], [12, 34], [[12, 34]]])
async def test_whole_and_streamed_are_the_same(serve: Serve, prompt: Any) -> None:
    url = await serve(TEXT + "<|return|>", tokens_per_step=2)
    request: dict[str, Any] = {"model": MODEL, "prompt": prompt, "max_tokens": 50, "logprobs": 2}
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        whole = await client.completions.create(**request)
        stream = await client.completions.create(
            **request, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert whole.choices[0].text == TEXT
    assert "".join(c.choices[0].text for c in chunks if c.choices) == TEXT
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.top_logprobs is not None
    assert len(logprobs.tokens) == len(logprobs.top_logprobs)


async def test_errors_are_the_sdks_own(serve: Serve) -> None:
    url = await serve(TEXT)
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.BadRequestError, match="suffix"):
            await client.completions.create(model=MODEL, prompt="a", suffix="b")
