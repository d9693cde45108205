"""The scripted engine's model: it thinks without end, and answers once it is told to."""

from __future__ import annotations

from service.harmony.vocabulary import (
    CHANNEL,
    END,
    MESSAGE,
    RETURN,
    START,
    encode_text,
)

FINAL = [CHANNEL, *encode_text("final"), MESSAGE]
TURN = [END, START, *encode_text("assistant")]
THOUGHTS = [CHANNEL, *encode_text("analysis"), MESSAGE, *encode_text("hm " * 20_000)]
ANSWER = [*encode_text("Hello!"), RETURN]


def write(prompt_token_ids: tuple[int, ...]) -> list[int]:
    end = list(prompt_token_ids[-8:])
    return ANSWER if end[-len(FINAL) :] == FINAL else THOUGHTS
