"""Log-probabilities of prompts as vLLM has them: what may be asked for, and how it is shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from engines.base import PromptLogprobs
from engines.prompt_logprobs import PromptToken, unpacked
from service.api.common.answer import clamped
from service.chat_format import CHAT_FORMAT
from service.errors import RequestError

# Of one request: two values for each token of a context of 131,072 tokens. An answer of as many
# is about 20 MB of JSON.
MAX_VALUES: Final = 262_144

Shown = list[dict[str, dict[str, Any]] | None]


def check_budget(num_tokens: int, num_top: int | None, param: str) -> None:
    """Raise RequestError for more log-probabilities than one answer may have; `num_tokens`: of all
    its prompts, each as often as it is answered."""
    if num_top is None:
        return
    num_values = num_tokens * (1 + num_top)
    if num_values > MAX_VALUES:
        raise RequestError(
            f"{param} asks for {num_values} log-probabilities of prompts; at most {MAX_VALUES} are "
            "given at once. Ask for fewer likely tokens, or send several requests.",
            param=param,
        )


def not_streamed(param: str) -> RequestError:
    """The error of a stream that asks for them, as vLLM has it."""
    return RequestError(
        "Log-probabilities of the prompt are not streamed; leave out stream.",
        param=param,
        code="unsupported_value",
    )


def shown(
    packed: Sequence[PromptLogprobs], prompt_token_ids: Sequence[int], num_top: int
) -> msgspec.Raw:
    """JSON in vLLM's shape: null for the first token, then for each the token and the likeliest."""
    names: dict[int, str] = {}
    places: Shown = [None]
    places += [_place(token, num_top, names) for token in unpacked(packed, prompt_token_ids)]
    return msgspec.Raw(msgspec.json.encode(places))


def _place(token: PromptToken, num_top: int, names: dict[int, str]) -> dict[str, dict[str, Any]]:
    ranked = [(token.token_id, token.logprob, token.rank)]
    ranked += [
        (id, logprob, rank)
        for rank, (id, logprob) in enumerate(token.top[:num_top], 1)
        if id != token.token_id
    ]
    return {
        str(id): {"logprob": clamped(logprob), "rank": rank, "decoded_token": _name(id, names)}
        for id, logprob, rank in ranked
    }


def _name(token_id: int, names: dict[int, str]) -> str:
    if token_id not in names:
        names[token_id] = CHAT_FORMAT.decode_marked([token_id])
    return names[token_id]
