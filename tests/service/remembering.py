"""A model that remembers what it reads, and a runtime that compacts conversations by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from engines.base import EngineRequest
from engines.parts import facet
from service.harmony.vocabulary import decode_marked
from service.run.wiring import ServingPart
from service.runtime import Runtime
from service.settings.settings import load
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions

WORD = "ember"
SUMMARY = f"The user told the code word: {WORD}."
ASKED = "Write a summary of this conversation"


class Remembering:
    """A model that knows the code word if its prompt has it; it has kept its prompts."""

    def __init__(self, ids: Callable[[str], Sequence[int]]) -> None:
        self.prompts: list[str] = []
        self.summary = SUMMARY
        self._ids = ids

    def __call__(self, request: EngineRequest) -> Sequence[int]:
        prompt = decode_marked(request.prompt_token_ids)
        self.prompts.append(prompt)
        said = self.summary if ASKED in prompt else WORD if WORD in prompt else "unknown"
        return self._ids(
            f"<|channel|>analysis<|message|>So.<|end|><|start|>assistant"
            f"<|channel|>final<|message|>{said}<|return|>"
        )


@pytest.fixture
def model(harmony_ids: Any) -> Remembering:
    return Remembering(harmony_ids)


@pytest.fixture
def wired(make_runtime: Any, model: Remembering) -> Callable[..., Runtime]:
    """A runtime with the part, and options as make_runtime takes them."""
    part = facet("compaction", "serving", ServingPart)
    if part is None:
        pytest.skip("the part compaction was removed")

    def make(**options: Any) -> Runtime:
        more = {"max_model_len": options.pop("max_model_len", 131_072)}
        runtime = make_runtime(engine=FakeEngine(FakeOptions(**more), model), **options)
        return part.wire(runtime, load({}))

    return make
