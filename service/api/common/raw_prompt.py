"""Prompts that are text or token ids as they are, with the limits of all prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from service.api.common.prompt import LONG_PROMPT_CHARS, PromptBound, counted
from service.chat_format import ChatFormat
from service.errors import RequestError
from service.work import in_loop

TokenIds = tuple[int, ...]

_PROMPT_CHARS: Final = 64  # what a prompt costs beside its text, in characters


def check_token_ids(token_ids: Sequence[int], param: str, vocab_size: int) -> None:
    """Raise RequestError unless there are ids and all of them are in the vocabulary."""
    if not token_ids:
        raise RequestError(f"{param} is empty; give at least one token.", param=param)
    if min(token_ids) >= 0 and max(token_ids) < vocab_size:
        return
    for index, token_id in enumerate(token_ids):
        if not 0 <= token_id < vocab_size:
            raise RequestError(
                f"{param}[{index}] is {str(token_id)[:40]}; token ids are 0 to {vocab_size - 1}.",
                param=f"{param}[{index}]",
            )


async def encode_prompt(format: ChatFormat, text: str, bound: PromptBound) -> TokenIds:
    """The ids of raw text; raises RequestError for more than the bound allows."""
    (token_ids,) = await encode_prompts(format, [text], [bound])
    return token_ids


async def encode_prompts(
    format: ChatFormat, texts: Sequence[str], bounds: Sequence[PromptBound]
) -> list[TokenIds]:
    """The ids of raw texts; long ones, or many, are encoded without holding up streams."""
    is_long = sum(map(len, texts)) + _PROMPT_CHARS * len(texts) > LONG_PROMPT_CHARS
    encoded = []
    for text, bound in zip(texts, bounds, strict=True):
        bound.check_least(len(text) // format.longest_token_chars)
        encode = partial(format.encode_marked, text)
        token_ids = await (counted(bound, encode) if is_long else in_loop(encode))
        bound.check(len(token_ids))
        encoded.append(tuple(token_ids))
        if is_long:
            await asyncio.sleep(0)
    return encoded
