"""What a conversation holds after answers, commands and errors; how markdown is cut in pieces."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from rich.console import Console

from parts.terminal.chat.prompt import CommandCompleter
from parts.terminal.chat.screen import Screen, split_whole
from parts.terminal.chat.session import Session, command
from parts.terminal.client import Answer, AnswerPiece, ChatError


def test_settings_are_sent_only_when_they_were_made() -> None:
    session = Session("m")
    session.ask("Hello?")
    assert session.body() == {"model": "m", "messages": [{"role": "user", "content": "Hello?"}]}
    for line in ("/effort high", "/system Be short.", "/temperature 0"):
        command(session, line)
    body = session.body()
    assert (body["reasoning_effort"], body["temperature"]) == ("high", 0)
    assert body["messages"][0] == {"role": "system", "content": "Be short."}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/effort huge", "takes low, medium, high"),
        ("/temperature warm", "takes a number, not 'warm'"),
        ("/save", "needs a file name"),
        ("/load", "needs a file name"),
        ("/load /no/such/file", "cannot be read: No such file"),
        ("/think loudly", "takes on or off; it is on"),
        ("/save /no/such/folder/x", "cannot be written: No such file"),
        ("/nonsense", "/nonsense is not a command"),
        ("/help", "/effort low|medium|high"),
    ],
)
def test_a_command_says_what_it_takes(line: str, words: str) -> None:
    session = Session("m")
    assert words in command(session, line)
    assert session == Session("m")


def test_an_answer_joins_and_a_missing_one_takes_its_question_back() -> None:
    session = Session("m")
    session.ask("One?")
    session.keep(Answer(content="1"))
    session.ask("Two?")
    session.keep(Answer(reasoning="Hm"))
    assert [turn["content"] for turn in session.turns] == ["One?", "1"]


@pytest.mark.parametrize("has_answer", [True, False])
def test_retry_puts_the_last_question_again(has_answer: bool) -> None:
    session = Session("m")
    session.ask("One?")
    session.keep(Answer(content="1"))
    session.ask("Two?")
    session.keep(Answer(content="2" if has_answer else ""))
    assert session.ask_again()
    assert [turn["content"] for turn in session.turns] == ["One?", "1", "Two?"]


def test_a_conversation_is_saved_as_a_request(tmp_path: Path) -> None:
    session = Session("m")
    session.ask("Wie schön?")
    command(session, f"/save {tmp_path / 'chat.json'}")
    assert json.loads((tmp_path / "chat.json").read_text()) == session.body()


def test_a_saved_conversation_is_continued_and_other_text_goes_with_the_next_question(
    tmp_path: Path,
) -> None:
    session = Session("m", system="Be short.")
    session.ask("One?")
    session.keep(Answer(content="1"))
    command(session, f"/save {tmp_path / 'chat.json'}")
    later = Session("m")
    assert command(later, f"/load {tmp_path / 'chat.json'}") == "Loaded 2 messages."
    assert later.body() == session.body()
    (tmp_path / "notes.md").write_text("a note")
    assert "6 characters" in command(later, f"/load {tmp_path / 'notes.md'}")
    later.ask("What does it say?")
    assert later.turns[-1]["content"] == "notes.md:\na note\n\nWhat does it say?"
    later.ask("And now?")
    assert later.turns[-1]["content"] == "And now?"


def test_the_servers_tools_are_listed_and_offered() -> None:
    session = Session("m")
    assert command(session, "/tools") == "This server has no tools of its own."
    session.connected = ("browser", "python")
    assert command(session, "/tools python on") == "Tools of the server: browser off, python on."
    assert session.body()["tools"] == [{"type": "code_interpreter"}]
    assert "takes browser or python" in command(session, "/tools python maybe")
    command(session, "/tools python off")
    assert "tools" not in session.body()


def screen(width: int = 40, shows_thoughts: bool = True) -> tuple[Screen, io.StringIO]:
    shown = io.StringIO()
    console = Console(file=shown, width=width, height=24, force_terminal=True, color_system=None)
    return Screen(console, shows_thoughts), shown


def plain(shown: io.StringIO) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.getvalue())


def test_each_line_of_code_is_shown_when_it_is_whole_however_long_the_code_is() -> None:
    writes, shown = screen()
    writes.show(AnswerPiece("content", "So:\n\n```python\n"))
    for number in range(60):
        writes.show(AnswerPiece("content", f"line_{number} = {number}\n"))
        assert f"line_{number} = {number}" in plain(shown)
    writes.show(AnswerPiece("content", "```\nAfter it."))
    writes.finish(Answer())
    assert "```" not in plain(shown)
    assert plain(shown).index("line_59") < plain(shown).index("After it.")
    assert [plain(shown).count(f"line_{number} ") for number in range(60)] == [1] * 60


def test_thoughts_break_between_words() -> None:
    writes, shown = screen(width=20)
    for piece in ("The us", "er asks for a lev", "el of the riv", "er Thames.", "\nNext."):
        writes.show(AnswerPiece("reasoning", piece))
    writes.finish(Answer())
    lines = [line.rstrip() for line in plain(shown).splitlines()]
    assert lines[:4] == ["The user asks for a", "level of the river", "Thames.", "Next."]


def test_thoughts_can_be_hidden() -> None:
    writes, shown = screen(shows_thoughts=False)
    writes.show(AnswerPiece("reasoning", "secret"))
    writes.show(AnswerPiece("content", "Yes."))
    writes.finish(Answer())
    assert "secret" not in plain(shown)
    assert "Thinking …" in plain(shown)
    assert "Yes." in plain(shown)


def completed(text: str) -> list[str]:
    found = CommandCompleter().get_completions(Document(text, len(text)), CompleteEvent())
    return [completion.text for completion in found]


def test_commands_are_completed_with_what_they_take() -> None:
    assert completed("/te") == ["/temperature"]
    assert completed("/effort ") == ["low", "medium", "high"]
    assert completed("/think o") == ["on", "off"]
    assert completed("Tell me /te") == []


def test_calls_come_together_from_their_pieces() -> None:
    answer = Answer()
    parts = [
        {"index": 0, "id": "call_1", "function": {"name": "add", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"a":'}},
        {"index": 0, "function": {"arguments": "1}"}},
    ]
    for part in parts:
        list(answer.take({"choices": [{"delta": {"tool_calls": [part]}}]}))
    function = {"name": "add", "arguments": '{"a":1}'}
    assert answer.tool_calls == [{"id": "call_1", "type": "function", "function": function}]


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_thoughts_are_known_by_both_names(key: str) -> None:
    assert list(Answer().take({"choices": [{"delta": {key: "Hm"}}]})) == [
        AnswerPiece("reasoning", "Hm")
    ]


def test_an_error_in_the_stream_is_told() -> None:
    with pytest.raises(ChatError, match="the engine stopped"):
        list(Answer().take({"error": {"message": "the engine stopped"}}))


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("One line", ""),
        ("One.\n\nTwo", "One.\n\n"),
        ("One.\n\nTwo\n\nThree", "One.\n\nTwo\n\n"),
    ],
)
def test_markdown_is_cut_between_paragraphs(text: str, whole: str) -> None:
    assert split_whole(text) == (whole, text[len(whole) :])
