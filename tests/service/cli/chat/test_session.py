"""What a conversation holds after answers, commands and errors; how markdown is cut in pieces."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from service.cli.chat.client import Answer, AnswerPiece, ChatError
from service.cli.chat.screen import split_whole
from service.cli.chat.session import Session, command


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
        ("/save", "takes a file's name"),
        ("/save /no/such/folder/x", "cannot be written: No such file"),
        ("/nonsense", "/nonsense is no command"),
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
        ("```\na\n\nb\n", ""),
        ("```\na\n\nb\n```\n\nAfter", "```\na\n\nb\n```\n\n"),
    ],
)
def test_markdown_is_cut_between_paragraphs_never_in_code(text: str, whole: str) -> None:
    assert split_whole(text) == (whole, text[len(whole) :])
