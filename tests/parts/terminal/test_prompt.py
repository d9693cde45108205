"""Keys at the prompt of `harmonium chat`, pressed in a terminal of prompt_toolkit's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from parts.terminal.chat.prompt import prompt_session


def typed(keys: str, history: Path) -> str:
    """What the prompt gives once the keys were pressed."""
    with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
        pipe.send_text(keys)
        return prompt_session(history).prompt()


@pytest.mark.heavy  # starts the editor
def test_a_question_is_written_in_the_users_editor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nprintf "%s\\nin two lines" "$(cat "$1")" > "$1"\n')
    editor.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(editor))
    assert typed("A question\x18\x05", tmp_path / "history") == "A question\nin two lines"


@pytest.mark.parametrize("keys", ["one\\\rtwo\r", "one\x1b\rtwo\r", "\x1b[200~one\ntwo\x1b[201~\r"])
def test_another_line_is_begun_and_pasted_lines_stay_together(keys: str, tmp_path: Path) -> None:
    assert typed(keys, tmp_path / "history") == "one\ntwo"
