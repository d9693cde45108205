"""An entry of `logprobs` as the API writes it."""

from __future__ import annotations

import json
import math

from engines.base import TokenLogprob
from service.api.common.answer import entries
from service.chat_format import format_named
from service.conversation import Delta, DeltaKind

FORMAT = format_named("harmony")
ORDINARY = [3, 40, 198, 290, 5_000, 199_000]  # with quotes, line breaks and parts of characters
CONTROL = 200_005


def test_an_entry_has_each_tokens_text_and_bytes() -> None:
    """Again and again, with other log-probabilities each time."""
    ids = [*range(256), *ORDINARY, CONTROL]
    for logprob in (-0.5, -1e-9, -math.inf):
        rivals = tuple((token, logprob) for token in ids)
        chosen = [TokenLogprob(198, logprob, rivals), TokenLogprob(CONTROL, 0.0)]
        delta = Delta(DeltaKind.CONTENT, "x", positions=(0, 1))
        first, last = (json.loads(bytes(entry)) for entry in entries(delta, chosen, FORMAT))
        number = max(logprob, -9999.0)
        assert first.pop("top_logprobs") == [expected(token, number) for token in ids]
        assert first == expected(198, number)
        assert last == {**expected(CONTROL, 0.0), "top_logprobs": []}


def expected(token: int, logprob: float) -> dict[str, object]:
    raw = FORMAT.decode_bytes(token)
    return {"token": raw.decode("utf-8", "replace"), "logprob": logprob, "bytes": [*raw]}
