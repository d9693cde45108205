"""The prompt with built-in tools is openai-harmony's, token for token."""

from __future__ import annotations

import openai_harmony as theirs
import pytest

from service.conversation import Conversation, Message, Tool, ToolCall
from service.harmony.render import render
from service.harmony.vocabulary import decode_marked

DATE = "2026-01-31"
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


@pytest.mark.parametrize("builtins", [("browser",), ("python",), ("browser", "python")])
@pytest.mark.parametrize("has_function", [False, True])
def test_the_system_message_is_the_documented_one(
    library: theirs.HarmonyEncoding, builtins: tuple[str, ...], has_function: bool
) -> None:
    system = theirs.SystemContent.new().with_conversation_start_date(DATE)
    system = system.with_browser_tool() if "browser" in builtins else system
    system = system.with_python_tool() if "python" in builtins else system
    messages = [theirs.Message.from_role_and_content(theirs.Role.SYSTEM, system)]
    if has_function:
        described = theirs.ToolDescription.new("f", "Does it.", parameters=SCHEMA)
        developer = theirs.DeveloperContent.new().with_function_tools([described])
        messages.append(theirs.Message.from_role_and_content(theirs.Role.DEVELOPER, developer))
    messages.append(theirs.Message.from_role_and_content(theirs.Role.USER, "Hi"))
    expected = library.render_conversation_for_completion(
        theirs.Conversation.from_messages(messages), theirs.Role.ASSISTANT
    )
    tools = (Tool("f", "Does it.", SCHEMA),) if has_function else ()
    ours = render(Conversation((Message("user", "Hi"),), DATE, tools, builtins=builtins))
    assert decode_marked(ours) == decode_marked(expected)
    assert ours == expected


LOOP = (
    Message("user", "2 + 2?"),
    Message("assistant", reasoning="Compute.", tool_calls=(ToolCall("1", "python", "2 + 2"),)),
    Message("tool", "4", tool_call_id="1"),
)


def test_a_loop_in_progress_keeps_its_built_in_calls() -> None:
    text = decode_marked(render(Conversation(LOOP, DATE)))
    assert text.endswith(
        "<|start|>assistant<|channel|>analysis<|message|>Compute.<|end|>"
        "<|start|>assistant to=python<|channel|>analysis code<|message|>2 + 2<|call|>"
        "<|start|>python to=assistant<|channel|>analysis<|message|>4<|end|><|start|>assistant"
    )


def test_after_the_answer_they_are_spent_like_all_reasoning() -> None:
    answered = (*LOOP, Message("assistant", "It is 4."), Message("user", "Thanks."))
    plain = (LOOP[0], *answered[3:])
    assert render(Conversation(answered, DATE)) == render(Conversation(plain, DATE))


def test_a_function_may_be_called_python() -> None:
    call = ToolCall("1", "python", '{"code": "2 + 2"}')
    messages = (LOOP[0], Message("assistant", tool_calls=(call,)), LOOP[2])
    for tools in ((), (Tool("python"),)):
        text = decode_marked(render(Conversation(messages, DATE, tools)))
        assert "assistant to=functions.python<|channel|>commentary json<|message|>{" in text
        assert "functions.python to=assistant<|channel|>commentary<|message|>4" in text
