"""What a guided answer may be and what not, as the native engine reads the grammar."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from engines.grammar.tree import Grammar
from service.chat_format import format_named
from service.conversation import FreeText, Tool
from service.errors import RequestError
from service.guide import answer
from service.guide.answer import AnswerFormat, ToolChoice
from service.harmony.vocabulary import RETURN

Accepts = Callable[[Grammar | None, str], bool]
Fixture = Callable[..., Any]

VOCAB_SIZE = 201_088
FORMAT = format_named("harmony")
answer_grammar = partial(answer.answer_grammar, FORMAT)
WEATHER = Tool(
    "get_weather",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
)
CLOCK = Tool("clock", parameters={"type": "object", "properties": {}})
TOOLS = (WEATHER, CLOCK)
STRICT = (Tool("get_weather", parameters=WEATHER.parameters, strict=True), CLOCK)
REQUIRED = ToolChoice("required")
PERSON = AnswerFormat(
    "json_schema",
    {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]},
)

THOUGHT = "<|channel|>analysis<|message|>Hm, 5 < 6.<|end|><|start|>assistant"
PREAMBLE = "<|channel|>commentary<|message|>I will look.<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city":"é"}'
ANSWER = "<|channel|>final<|message|>It is sunny."
JSON = '<|channel|>final <|constrain|>json<|message|>{"age": 3}'


@pytest.fixture
def accepts(guide_of: Fixture, harmony_ids: Callable[[str], tuple[int, ...]]) -> Accepts:
    """Whether an answer, closed by <|return|> unless by <|call|>, can be generated."""

    def check(grammar: Grammar | None, text: str) -> bool:
        guide = guide_of(grammar)
        mask = np.empty(-(-VOCAB_SIZE // 32), np.int32)
        for token_id in harmony_ids(text if text.endswith("<|call|>") else text + "<|return|>"):
            guide.fill(mask)
            assert mask.any()
            if not mask[token_id // 32] >> token_id % 32 & 1:
                return False
            guide.accept(token_id)
        return True

    return check


def check(accepts: Accepts, grammar: Grammar | None, texts: dict[str, bool]) -> None:
    assert {text: accepts(grammar, text) for text in texts} == texts


def test_nothing_is_guided_unless_something_is_asked_for() -> None:
    assert answer_grammar(()) is None
    assert answer_grammar(TOOLS) is None
    assert answer_grammar(TOOLS, ToolChoice("none")) is None
    assert answer_grammar((Tool("f", strict=False),)) is None


def test_after_the_end_of_the_reasoning_there_is_none(
    accepts: Accepts, harmony_ids: Callable[[str], tuple[int, ...]]
) -> None:
    whole = answer.open_grammar(FORMAT, ["get_weather", "note"], ["note"])
    ended_by, rest = FORMAT.end_of_reasoning(whole)
    assert tuple(ended_by) == harmony_ids("<|end|><|start|>assistant")
    note = "<|channel|>commentary to=functions.note<|message|>text<|call|>"
    texts = {ANSWER: True, CALL + "<|call|>": True, note: True, PREAMBLE + CALL + "<|call|>": True}
    thoughtful = {THOUGHT + text: True for text in texts}
    check(accepts, whole, texts | thoughtful)
    check(accepts, rest, texts | dict.fromkeys(thoughtful, False))


def test_required_forces_a_call(accepts: Accepts) -> None:
    """vllm#44216, vllm#48672, sglang#9980: required means a call of one of the tools."""
    texts = {
        CALL + "<|call|>": True,
        THOUGHT + CALL + "<|call|>": True,
        THOUGHT + PREAMBLE + CALL + "<|call|>": True,
        "<|channel|>commentary to=functions.clock<|message|>{}<|call|>": True,
        ANSWER: False,
        THOUGHT + ANSWER: False,
        PREAMBLE + ANSWER: False,
        THOUGHT: False,
        CALL: False,  # closed by <|return|>
        CALL.replace('"city"', '"town"') + "<|call|>": False,
        CALL.replace("get_weather", "get_time") + "<|call|>": False,
        THOUGHT + THOUGHT + CALL + "<|call|>": False,
    }
    check(accepts, answer_grammar(TOOLS, REQUIRED), texts)


@pytest.mark.parametrize(
    "header",
    [
        " to=functions.get_weather<|channel|>commentary json<|message|>",
        " to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>",
        " to=functions.get_weather<|channel|>commentary<|constrain|>json<|message|>",
        " to=functions.get_weather<|channel|>commentary<|message|>",
        "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.get_weather<|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.get_weather json<|message|>",
        "<|channel|>commentary to=functions.get_weather<|message|>",
    ],
)
def test_every_spelling_of_a_call_is_allowed(accepts: Accepts, header: str) -> None:
    assert accepts(answer_grammar(TOOLS, REQUIRED), header + '{"city": "Oslo"}<|call|>')


def test_a_named_function_is_the_only_one(accepts: Accepts) -> None:
    """cloudflare/ai#574: a forced call is a call, not JSON in the text."""
    texts = {
        THOUGHT + CALL + "<|call|>": True,
        "<|channel|>commentary to=functions.clock<|message|>{}<|call|>": False,
        '<|channel|>final<|message|>{"city":"é"}': False,
    }
    check(accepts, answer_grammar(TOOLS, ToolChoice.named("get_weather")), texts)


def test_allowed_tools_narrow_the_choice(accepts: Accepts) -> None:
    clock = "<|channel|>commentary to=functions.clock<|message|>{}<|call|>"
    allowed = frozenset(("clock",))
    texts = {clock: True, ANSWER: True, CALL + "<|call|>": False}
    check(accepts, answer_grammar(TOOLS, ToolChoice("auto", allowed)), texts)
    texts = {clock: True, ANSWER: False, CALL + "<|call|>": False}
    check(accepts, answer_grammar(TOOLS, ToolChoice("required", allowed)), texts)


def test_strict_tools_hold_under_auto(accepts: Accepts) -> None:
    """sglang#19074: a strict tool works with auto, beside others that are not strict."""
    texts = {
        CALL + "<|call|>": True,
        THOUGHT + ANSWER: True,
        CALL.replace('"é"', "3") + "<|call|>": False,
        CALL.replace('"city":"é"', "") + "<|call|>": False,
        '<|channel|>commentary to=functions.clock<|message|>{"any": [1]}<|call|>': True,
        "<|channel|>commentary to=functions.clock<|message|>now<|call|>": False,
    }
    check(accepts, answer_grammar(STRICT), texts)


def test_a_schema_holds_on_the_final_message_and_leaves_reasoning_free(
    accepts: Accepts,
) -> None:
    """vllm#23120, vllm#45570, sglang#31019, sglang#9259, ollama#11691.

    The final header stands before the JSON, in every spelling; reasoning stays free.
    """
    texts = {
        JSON: True,
        THOUGHT + JSON: True,
        '<|channel|>final json<|message|>{"age": 3}': True,
        '<|channel|>final<|constrain|>json<|message|>{"age": 3}': True,
        '<|channel|>final<|message|>{\n"age": 3\n}': True,
        '{"age": 3}': False,
        THOUGHT + '{"age": 3}': False,
        ANSWER: False,
        JSON.replace("3", '"3"'): False,
        JSON.replace("}", ', "x": 1}'): False,
        JSON + " That is all.": False,
        PREAMBLE + JSON: False,  # would stand before the JSON in the content
        '<|channel|>final<|message|>{"age": 3': False,
    }
    check(accepts, answer_grammar((), format=PERSON), texts)


def test_tools_and_a_format_leave_both_possible(accepts: Accepts) -> None:
    texts = {
        THOUGHT + JSON: True,
        THOUGHT + PREAMBLE + CALL + "<|call|>": True,
        THOUGHT + ANSWER: False,
        PREAMBLE + JSON: False,
    }
    check(accepts, answer_grammar(TOOLS, format=PERSON), texts)
    none = answer_grammar(TOOLS, ToolChoice("none"), PERSON)
    check(accepts, none, {JSON: True, CALL + "<|call|>": False})
    forced = answer_grammar(TOOLS, REQUIRED, PERSON)
    check(accepts, forced, {JSON: False, CALL + "<|call|>": True})


@pytest.mark.parametrize(
    ("format", "good", "bad"),
    [
        (AnswerFormat("json_object"), '{"a": [1, {"b": null}]}', "[1]"),
        (AnswerFormat("regex", "[a-c]{2}"), "ab", "abc"),
        (AnswerFormat("choice", ("yes", "no")), "no", "maybe"),
        (AnswerFormat("grammar", 'root ::= "x" | "y" root'), "yyx", "yy"),
        (AnswerFormat("structural_tag", {"type": "const_string", "value": "ok"}), "ok", "no"),
    ],
)
def test_every_kind_of_format(accepts: Accepts, format: AnswerFormat, good: str, bad: str) -> None:
    head = THOUGHT + "<|channel|>final<|message|>"
    check(accepts, answer_grammar((), format=format), {head + good: True, head + bad: False})


def test_text_cannot_hold_control_tokens_but_may_spell_them(
    accepts: Accepts, harmony_ids: Callable[[str], tuple[int, ...]]
) -> None:
    """vllm#32587, TensorRT-LLM#9256: no marker in a text, a name or arguments."""
    grammar = answer_grammar(STRICT)
    texts = {
        "<|channel|>final<|message|>a <|start|> b": False,
        "<|channel|>final<|message|>a <|channel|> b": False,
        "<|channel|>analysis<|message|>a <|message|> b<|end|><|start|>assistant" + ANSWER: False,
        CALL.replace("é", "<|end|>") + "<|call|>": False,
        "<|channel|>final<|message|>a < |end|> b": True,
    }
    check(accepts, grammar, texts)


@pytest.mark.parametrize("budget", [0, 4])
def test_a_thinking_budget_closes_the_analysis_message(accepts: Accepts, budget: int) -> None:
    grammar = answer_grammar((), max_reasoning_tokens=budget)
    thought = "<|channel|>analysis<|message|>{}<|end|><|start|>assistant"
    texts = {
        thought.format(" a" * budget) + ANSWER: True,
        thought.format(" a" * (budget + 1)) + ANSWER: False,
        ANSWER: True,
    }
    check(accepts, grammar, texts)


@pytest.mark.parametrize(
    ("tools", "choice", "word"),
    [
        ((), REQUIRED, "send tools"),
        ((), ToolChoice.named("f"), "'f'"),
        (TOOLS, ToolChoice.named("f"), "clock, get_weather"),
        (TOOLS, ToolChoice("auto", frozenset(("clock", "f"))), "'f'"),
    ],
)
def test_a_choice_that_cannot_be_made_is_refused(
    tools: tuple[Tool, ...], choice: ToolChoice, word: str
) -> None:
    """vllm#48672, vllm#53626: no silent downgrade."""
    with pytest.raises(RequestError, match=word) as caught:
        answer_grammar(tools, choice)
    assert caught.value.param == "tool_choice"


@pytest.mark.parametrize(
    "format",
    [
        {"type": "token", "token": RETURN},
        {"type": "sequence", "elements": [{"type": "any_tokens", "exclude_tokens": []}]},
        {"type": "tag", "begin": {"type": "token", "token": 1}, "content": {}, "end": ""},
        {"type": "dispatch", "rules": [["a", {"type": "token", "token": RETURN}]]},
        {"elements": []},
    ],
)
def test_a_clients_tag_cannot_name_tokens(format: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        answer_grammar((), format=AnswerFormat("structural_tag", format))
    assert caught.value.code == "invalid_grammar"
    assert str(caught.value.param).startswith("response_format")


def test_equal_requests_make_equal_grammars() -> None:
    grammars = {answer_grammar(STRICT, format=PERSON) for _ in range(3)}
    assert len(grammars) == 1


def test_a_custom_tools_input_follows_its_pattern(accepts: Accepts) -> None:
    tools = (
        Tool("when", free_text=FreeText(r"\d{4}-\d\d")),
        Tool("run", free_text=FreeText()),
        Tool("add", free_text=FreeText(lark='start: /\\d/ ("+" /\\d/)*')),
    )
    head = "<|channel|>commentary to=functions.{}<|message|>"
    texts = {
        head.format("when") + "2026-01<|call|>": True,
        head.format("when") + "2026-1<|call|>": False,
        head.format("when") + '{"input": "2026-01"}<|call|>': False,
        head.format("run") + 'print("é")\n<|call|>': True,
        head.format("add") + "1+2+3<|call|>": True,
        head.format("add") + "1+<|call|>": False,
        ANSWER: True,
    }
    check(accepts, answer_grammar(tools), texts)
    forced = answer_grammar(tools, ToolChoice.named("run"))
    check(accepts, forced, {ANSWER: False, head.format("run") + "{} []<|call|>": True})


def test_built_in_tools_may_be_called_beside_all_else(accepts: Accepts) -> None:
    builtins = ("python", "browser")
    code = "<|channel|>analysis to=python code<|message|>print(1)<|call|>"
    search = ' to=browser.search<|channel|>commentary json<|message|>{"query": "é"}<|call|>'
    texts = {code: True, THOUGHT + search: True, search.replace('{"', '["'): False, JSON: True}
    check(accepts, answer_grammar((), format=PERSON, builtins=builtins), texts)
    assert not accepts(answer_grammar((), format=PERSON), code)
    forced = answer_grammar(TOOLS, REQUIRED, builtins=builtins)
    check(accepts, forced, {code: True, CALL + "<|call|>": True, ANSWER: False})
    alone = answer_grammar((), REQUIRED, builtins=builtins)
    check(accepts, alone, {code: True, ANSWER: False})
    assert answer_grammar((), builtins=builtins) is None
