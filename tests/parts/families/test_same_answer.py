"""One generation is the same answer on every route, whole or streamed, in any step size."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, ClassVar

from hypothesis import example, given
from hypothesis import strategies as st

from engines.base import SamplingParams
from parts.completions.answer import CompletionAnswer, CompletionChunks, CompletionHead
from parts.messages.answer import MessageAnswer, MessageEvents, MessageHead
from parts.responses.answer.document import end_of, ended
from parts.responses.answer.events import ResponseEvents
from parts.responses.answer.output import Output
from parts.responses.answer.pieces import Piece, pieces_of
from service.answer.choice import ChoiceStep
from service.answer.generation import Generation
from service.answer.plan import Plan
from service.api.chat.answer import ChatAnswer, ChatChunks
from service.api.common.answer import StreamedUsage
from service.chat_format import format_named
from service.harmony.vocabulary import (
    CALL,
    CHANNEL,
    CONSTRAIN,
    END,
    MESSAGE,
    RETURN,
    START,
    decode_bytes,
    encode_text,
)
from service.request import RequestContext
from tests.examples import examples
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions

AT_END = StreamedUsage(at_end=True)
NAMES = frozenset({"f", "get_weather"})
FORMAT = format_named("harmony")
PROMPT = tuple(range(40))
WORDS = (
    "assistant",
    "analysis",
    "commentary",
    "final",
    " to=functions.f",
    " to=functions.get_weather",
    " to=functions.unknown",
    "json",
    '{"a": 1}',
    "Hello there",
    "\n",
    "é漢",
)
ANALYSIS = [CHANNEL, *encode_text("analysis"), MESSAGE, *encode_text("Hm 🪿"), END]
PREAMBLE = [CHANNEL, *encode_text("commentary"), MESSAGE, *encode_text("Look."), END]
FINAL = [CHANNEL, *encode_text("final"), MESSAGE, *encode_text("Grüße 🫠!"), END]
JSON_CALL = [*encode_text("commentary to=functions.f "), CONSTRAIN, *encode_text("json"), MESSAGE]
CALLS = [
    [CHANNEL, *JSON_CALL, *encode_text(arguments), END]
    for arguments in ('{"a": "é"}', "", "no JSON", '{"b": [1, 2')
]
TURN = [START, *encode_text("assistant")]

messages = st.sampled_from([ANALYSIS, PREAMBLE, FINAL, *CALLS]).map(lambda ids: [*ids, *TURN])
controls = st.sampled_from((START, CHANNEL, CONSTRAIN, MESSAGE, END)).map(lambda i: [i])
ends = st.sampled_from((RETURN, CALL, 200013)).map(lambda i: [i])
halves = st.sampled_from(encode_text("🪿🫠")).map(lambda i: [i])
words = st.sampled_from(WORDS).map(encode_text)
outputs = st.lists(
    st.one_of(messages, messages, controls, words, halves, ends), min_size=1, max_size=12
).map(lambda pieces: [token_id for piece in pieces for token_id in piece])


@dataclass(frozen=True)
class Answer:
    """What a client has in the end, whatever the route's shape."""

    content: str
    reasoning: str
    calls: list[tuple[str, Any]]  # name; arguments, on the Messages route as an object
    usage: tuple[int, int, int]  # prompt, answer, reasoning
    finish: str


async def run(
    script: Sequence[int], step: int, plan: Plan, takers: Callable[[Generation], list[Any]]
) -> list[Any]:
    """Generate once; every taker is given each step. Gives the takers."""
    engine = FakeEngine(FakeOptions(script=tuple(script), tokens_per_step=step))
    await engine.start()
    generation = Generation(engine, plan)
    made = takers(generation)
    async with aclosing(generation.steps()) as steps:
        async for one in steps:
            for taker in made:
                taker.add(one)
    await engine.stop()
    return made


class Stream:
    """Keeps the bytes of an encoder."""

    def __init__(self, encoder: Any) -> None:
        self._encoder = encoder
        self._sent = b""

    def add(self, step: ChoiceStep) -> None:
        if not self._sent:
            self._sent = self._encoder.begin()
        self._sent += self._encoder.step(step)

    def events(self) -> list[dict[str, Any]]:
        return parsed(self._sent + self._encoder.end())


class Response:
    """Collects the pieces of a response and the bytes of its events."""

    head: ClassVar = {"id": f"resp_{0:032x}", "status": "in_progress", "tools": []}

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._pieces: list[Piece] = []
        self._events = ResponseEvents(self.head)
        self._sent = self._events.begin()

    def add(self, step: ChoiceStep) -> None:
        pieces = pieces_of(step, self._generation.choices[0])
        self._pieces += pieces
        self._sent += self._events.add(pieces)

    def document(self) -> dict[str, Any]:
        output = Output(self.head)
        output.extend(self._pieces)
        return ended(self.head, output, end_of(self._generation, 0))

    def events(self) -> list[dict[str, Any]]:
        return parsed(self._sent + self._events.end(self.document()))


def parsed(sent: bytes) -> list[dict[str, Any]]:
    """The events on the wire."""
    lines = (line for line in sent.decode().split("\n") if line.startswith("data: "))
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def plan_of(script: Sequence[int], **changes: Any) -> Plan:
    sampling = SamplingParams(max_tokens=len(script))
    stop = FORMAT.stop_token_ids
    changes = {"tool_names": NAMES} | changes
    return Plan(RequestContext("r"), FORMAT, PROMPT, sampling, 4096, stop, **changes)


def takers(generation: Generation) -> list[Any]:
    numbers = itertools.count()

    def new_id() -> str:
        return f"call_{next(numbers)}"

    def head() -> MessageHead:
        max_tokens = generation.plan.sampling.max_tokens
        return MessageHead(generation, id="m", model="m", max_tokens=max_tokens, new_call_id=new_id)

    chunks = ChatChunks(generation, id="c", model="m", created=0, usage=AT_END, new_call_id=new_id)
    return [
        ChatAnswer(generation, new_id),
        Stream(chunks),
        MessageAnswer(head()),
        Stream(MessageEvents(head())),
        Response(generation),
    ]


def answers(made: list[Any]) -> list[Answer]:
    whole_chat, chat_stream, whole_message, message_stream, response = made
    document, events = response.document(), response.events()
    assert events[-1]["response"] == document
    return [
        of_chat(completion_of(whole_chat)),
        of_chunks(chat_stream.events()),
        of_message(json.loads(whole_message.body())),
        of_events(message_stream.events()),
        of_items(document["output"], document),
        of_items(streamed_items(events), document),
    ]


def completion_of(answer: ChatAnswer) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(answer.body(id="c", model="m", created=0))
    return body


def of_chat(body: dict[str, Any]) -> Answer:
    choice, usage = body["choices"][0], body["usage"]
    message = choice["message"]
    calls = [call["function"] for call in message.get("tool_calls", [])]
    return Answer(
        message["content"] or "",
        message["reasoning"] or "",
        [(call["name"], call["arguments"]) for call in calls],
        counts(usage),
        choice["finish_reason"],
    )


def counts(usage: dict[str, Any]) -> tuple[int, int, int]:
    reasoning = usage["completion_tokens_details"]["reasoning_tokens"]
    return usage["prompt_tokens"], usage["completion_tokens"], reasoning


def of_chunks(chunks: list[dict[str, Any]]) -> Answer:
    message: dict[str, Any] = {"content": "", "reasoning": "", "tool_calls": []}
    finish = ""
    for chunk in chunks[:-1]:
        choice = chunk["choices"][0]
        finish = choice["finish_reason"] or finish
        for field in ("content", "reasoning"):
            message[field] += choice["delta"].get(field, "")
        for call in choice["delta"].get("tool_calls", ()):
            if "id" in call:
                message["tool_calls"].append({"function": dict(call["function"])})
            else:
                function = message["tool_calls"][call["index"]]["function"]
                function["arguments"] += call["function"]["arguments"]
    choice = {"message": message, "finish_reason": finish}
    return of_chat({"choices": [choice], "usage": chunks[-1]["usage"]})


def of_blocks(blocks: Iterable[dict[str, Any]], body: dict[str, Any]) -> Answer:
    blocks, usage = list(blocks), body["usage"]
    assert not any(
        a["type"] == b["type"] != "tool_use" for a, b in itertools.pairwise(blocks)
    )  # neighbours of one kind are one block
    reasons = {"end_turn": "stop", "max_tokens": "length", "tool_use": "tool_calls"}
    prompt = usage["input_tokens"] + usage["cache_read_input_tokens"]
    thinking = usage["output_tokens_details"]["thinking_tokens"]
    return Answer(
        "".join(b["text"] for b in blocks if b["type"] == "text"),
        "".join(b["thinking"] for b in blocks if b["type"] == "thinking"),
        [(b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"],
        (prompt, usage["output_tokens"], thinking),
        reasons[body["stop_reason"]],
    )


def of_message(body: dict[str, Any]) -> Answer:
    return of_blocks(body["content"], body)


def of_events(events: list[dict[str, Any]]) -> Answer:
    blocks: list[dict[str, Any]] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"] | {"input": ""})
        elif event["type"] == "content_block_delta":
            _, *fields = event["delta"].items()
            for field, text in fields:
                blocks[-1][{"partial_json": "input"}.get(field, field)] += text
    ending = events[-2]
    return of_blocks(blocks, {"usage": ending["usage"], **ending["delta"]})


def of_items(items: list[dict[str, Any]], response: dict[str, Any]) -> Answer:
    def texts(kind: str) -> str:
        parts = (p for item in items if item["type"] == kind for p in item["content"])
        return "".join(part["text"] for part in parts)

    calls = [(i["name"], i["arguments"]) for i in items if i["type"] == "function_call"]
    usage = response["usage"]
    finish = "tool_calls" if calls else "stop"
    return Answer(
        texts("message"),
        texts("reasoning"),
        calls,
        (
            usage["input_tokens"],
            usage["output_tokens"],
            usage["output_tokens_details"]["reasoning_tokens"],
        ),
        "length" if response["status"] == "incomplete" else finish,
    )


def streamed_items(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items that a client puts together from the deltas alone."""
    items: list[dict[str, Any]] = []
    for event in events:
        match event["type"].removeprefix("response.").rsplit(".", 1):
            case ["output_item", "added"]:
                items.append(event["item"])
            case ["content_part", "added"]:
                items[-1]["content"].append(event["part"])
            case ["function_call_arguments", "delta"]:
                items[-1]["arguments"] += event["delta"]
            case ["output_text" | "reasoning_text", "delta"]:
                items[-1]["content"][-1]["text"] += event["delta"]
    return items


def read(arguments: str) -> dict[str, Any] | None:
    """The object that arguments are, if they are one."""
    try:
        parsed = json.loads(arguments or "{}")
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


@examples(120)
@given(outputs, st.sampled_from([2, 3, 7, 1000]))
@example([*ANALYSIS, *TURN, *PREAMBLE, *TURN, *CALLS[0][:-1], CALL], 3)
@example([*FINAL, *TURN, *ANALYSIS, *TURN, *FINAL[:-1], RETURN], 2)
def test_every_route_gives_the_same_answer(script: list[int], step: int) -> None:
    plan = plan_of(script)
    made = answers(asyncio.run(run(script, 1, plan, takers)))
    stepped = answers(asyncio.run(run(script, step, plan, takers)))
    assert made == stepped
    chat, chunks, message, events, items, item_events = made
    assert chat == chunks == events == items == item_events
    for (name, arguments), (other_name, input) in zip(chat.calls, message.calls, strict=True):
        assert name == other_name
        assert read(arguments) is None or read(arguments) == input
    assert message == Answer(**(vars(chat) | {"calls": message.calls}))
    assert {name for name, _ in chat.calls} <= NAMES
    assert "<|" not in repr(made)


@examples(80)
@given(outputs, st.sampled_from([2, 5, 1000]), st.sampled_from(["e", "oo", "é", "\n\n", "🪿"]))
def test_a_stop_string_cuts_every_route_at_the_same_place(
    script: list[int], step: int, stop: str
) -> None:
    plan = plan_of(script, stop=(stop,), max_calls=1, has_reasoning=False)
    made = asyncio.run(run(script, 1, plan, takers))
    generated = json.loads(made[2].body())
    if generated["stop_reason"] == "stop_sequence":
        assert generated["stop_sequence"] == stop
        generated["stop_reason"] = "end_turn"
    whole = of_chat(completion_of(made[0]))
    streamed = of_chunks(asyncio.run(run(script, step, plan, takers))[1].events())
    message = of_message(generated)
    assert whole == streamed
    assert (message.content, message.usage) == (whole.content, whole.usage)
    assert stop not in whole.content
    assert whole.reasoning == message.reasoning == ""


@examples(80)
@given(outputs, st.sampled_from([2, 5, 1000]))
def test_raw_text_is_the_bytes_of_the_tokens(script: list[int], step: int) -> None:
    plan = plan_of(script, output="text", tool_names=frozenset())

    def raw_takers(generation: Generation) -> list[Any]:
        head = CompletionHead("c", 0, "m")
        chunks = CompletionChunks(generation, head, [""], AT_END)
        return [CompletionAnswer(generation, head, [""]), Stream(chunks)]

    whole, _ = asyncio.run(run(script, 1, plan, raw_takers))
    _, stream = asyncio.run(run(script, step, plan, raw_takers))
    body, chunks = json.loads(whole.body()), stream.events()
    text = body["choices"][0]["text"]
    assert text == "".join(c["choices"][0]["text"] for c in chunks if c["choices"])
    assert chunks[-1]["usage"] == body["usage"]
    num_tokens = next((i for i, ids in enumerate(script, 1) if ids in (RETURN, CALL)), len(script))
    assert body["usage"]["completion_tokens"] == num_tokens
    spelt = b"".join(map(decode_bytes, script[:num_tokens])).decode("utf-8", "ignore")
    assert "\ufffd" in text or text == spelt
    assert "<|" not in text
    harmony = of_chat(completion_of(asyncio.run(run(script, step, plan_of(script), takers))[0]))
    assert harmony.usage[:2] == (len(PROMPT), num_tokens)
