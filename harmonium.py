"""The native engine in this process: prompts in, answers out, no server.

    from harmonium import LLM, SamplingParams

    llm = LLM("nano")
    [answer] = llm.chat([[{"role": "user", "content": "What is the capital of France?"}]])
    print(answer.text)

All prompts of a call are computed together, as the server computes concurrent requests.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from engines.base import (
    Adapter,
    EngineRequest,
    FinishReason,
    SamplingParams,
    TokenEvent,
    TokenLogprob,
)
from engines.errors import EngineError, InvalidRequest
from engines.native.assemble import config_of_spec, load_core, options_of_spec
from engines.native.config import NativeConfig
from engines.native.engine_option import EngineOption
from engines.validation import check_request
from service.conversation import Conversation, DeltaKind, Message
from service.run.scratch import with_cache
from service.run.startup import obtain, prepare
from service.settings.settings import load

__all__ = ["LLM", "Answer", "SamplingParams"]

_DEFAULT: Final = SamplingParams(max_tokens=256)

Prompt = str | Sequence[int]


@dataclass(frozen=True, slots=True)
class Answer:
    """What one prompt was answered with."""

    token_ids: tuple[int, ...]
    text: str  # of `chat` the final message; of `generate` all of it, control tokens spelt out
    finish_reason: FinishReason
    reasoning: str = ""  # of `chat`
    logprobs: tuple[TokenLogprob, ...] = ()  # one per token, where SamplingParams asks for them
    num_cached_tokens: int = 0  # of the prompt, taken from the prefix cache


class LLM:
    """A model on this machine's GPU or CPU, by the native engine's profile for it."""

    def __init__(self, model: str | Path = "nano", **settings: Any) -> None:
        """`model`: a name of the catalogue, or a checkpoint's folder. `settings`: docs/settings.md.

        Raises ProfileError where no profile of the native engine fits, and EngineStartError.
        """
        name = "model_path" if Path(model).is_dir() else "model_name"
        asked = with_cache(load({name: str(model), "tags_selector": "engine=native", **settings}))
        launch = prepare(asked)
        obtain(asked, launch)
        self._format = launch.format
        parts = launch.spec.parts
        self._config = config = config_of_spec(parts, NativeConfig.from_spec(launch.spec))
        self._adapters: Path | None = getattr(asked, "peft_source", None)
        self._core = load_core(config)
        self._core.use(options_of_spec(parts, config))

    def generate(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingParams = _DEFAULT,
        adapter: str | None = None,
    ) -> list[Answer]:
        """Continue each prompt, text or token ids; raises InvalidRequest and EngineError.

        `adapter`: a subfolder of `peft_source`, a setting, with a LoRA adapter to compute with.
        """
        format = self._format
        ids = [format.encode_marked(each) if isinstance(each, str) else each for each in prompts]
        return [
            _answer(events, format.decode_marked(_tokens(events)))
            for events in self._run(ids, sampling, adapter)
        ]

    def chat(
        self,
        conversations: Sequence[Sequence[Mapping[str, str]]],
        sampling: SamplingParams = _DEFAULT,
        adapter: str | None = None,
    ) -> list[Answer]:
        """Answer each conversation, of messages with `role` and `content`; `adapter` as above."""
        prompts = [
            self._format.prompt_of(
                Conversation(
                    tuple(Message(each["role"], each["content"]) for each in messages),  # type: ignore[arg-type]
                    current_date=time.strftime("%Y-%m-%d"),
                )
            )
            for messages in conversations
        ]
        answers = []
        for events in self._run(prompts, sampling, adapter, self._format.stop_token_ids):
            parser = self._format.parser(frozenset())
            deltas = [*parser.feed(_tokens(events)), *parser.finish()]
            text, reasoning = (
                "".join(delta.text for delta in deltas if delta.kind is kind)
                for kind in (DeltaKind.CONTENT, DeltaKind.REASONING)
            )
            answers.append(_answer(events, text, reasoning))
        return answers

    def _run(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingParams,
        adapter: str | None,
        stop_token_ids: tuple[int, ...] = (),
    ) -> list[list[TokenEvent]]:
        """The events of each prompt; all run at once."""
        core, scheduler = self._core, self._core.scheduler
        loaded = None if adapter is None else self._loaded(adapter)
        salt = None if loaded is None else loaded.key
        requests = [
            EngineRequest(
                str(index), tuple(prompt), sampling, stop_token_ids, adapter=loaded, cache_salt=salt
            )
            for index, prompt in enumerate(prompts)
        ]
        for request in requests:
            check_request(request, core.vocab_size, scheduler.limits.max_model_len)
        for request in requests:
            scheduler.add(request)
        events: list[list[TokenEvent]] = [[] for _ in requests]
        failures: list[EngineError] = []
        while core.has_work:
            for sequence, outcome in core.step():
                if isinstance(outcome, TokenEvent):
                    events[int(sequence.request.request_id)].append(outcome)
                else:
                    failures.append(outcome)
        if failures:
            raise failures[0]
        return events

    def _loaded(self, name: str) -> Adapter:
        folder = Path(self._adapters or "", name)
        for option in self._core.options:
            if isinstance(option, EngineOption) and (own := option.adapter(self._config, folder)):
                return own
        raise InvalidRequest(f"adapter is {name!r}, and peft_source names no folder of adapters")


def _tokens(events: Sequence[TokenEvent]) -> list[int]:
    return [token for event in events for token in event.token_ids]


def _answer(events: Sequence[TokenEvent], text: str, reasoning: str = "") -> Answer:
    finish_reason = events[-1].finish_reason
    assert finish_reason is not None
    logprobs = tuple(each for event in events for each in event.logprobs or ())
    num_cached = events[-1].num_cached_tokens
    return Answer(tuple(_tokens(events)), text, finish_reason, reasoning, logprobs, num_cached)
