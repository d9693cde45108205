"""`harmonium chat` as a person types it, on nano."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Server

COMMAND = [str(Path(sys.executable).parent / "harmonium"), "chat"]
pytestmark = pytest.mark.heavy

WITHIN_S = 60  # generous: the machine may be busy


def ask(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], input=given, capture_output=True, text=True, timeout=WITHIN_S
    )


def test_one_question_gives_its_answer_alone(server: Server) -> None:
    done = ask("--url", server.url, "--quick", "What is nano?", "--temperature", "0")
    assert done.returncode == 0, done.stderr
    assert "small demonstration model" in done.stdout
    assert "The user asks" not in done.stdout  # its thoughts are not for a pipe


def test_a_piped_question_gives_json(server: Server) -> None:
    done = ask("--url", f"{server.url}/v1", "--json", given="What is nano?\n")
    answer = json.loads(done.stdout)
    assert answer["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] > 0
    assert answer["reasoning"]


def test_piped_text_goes_with_the_question(server: Server) -> None:
    done = ask("--url", server.url, "--json", "--quick", "What is nano?", given="Some text.\n")
    alone = ask("--url", server.url, "--json", "--quick", "What is nano?")
    usages = [json.loads(each.stdout)["usage"]["prompt_tokens"] for each in (done, alone)]
    assert usages[0] > usages[1]


def test_what_the_server_refuses_is_told_in_its_words(server: Server) -> None:
    done = ask("--url", server.url, "--model", "gpt-5", "--quick", "Hello")
    assert done.returncode == 1
    assert "gpt-5" in done.stderr


def test_without_a_server_it_says_how_to_start_one() -> None:
    done = ask("--url", "http://127.0.0.1:9", "--quick", "Hello")
    assert done.returncode == 1
    assert "Start one with `harmonium serve`" in done.stderr


class Terminal:
    """The command in a terminal of its own."""

    def __init__(self, url: str, home: Path) -> None:
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.environ |= {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", "HOME": str(home)}
            os.execv(COMMAND[0], [*COMMAND, "--url", url, "--temperature", "0"])
        self._shown = ""

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def read_until(self, wanted: str) -> str:
        deadline = time.monotonic() + WITHIN_S
        while wanted not in self._shown:
            assert time.monotonic() < deadline, f"no {wanted!r} in {self._shown!r}"
            if select.select([self._terminal], [], [], 1)[0]:
                self._shown += os.read(self._terminal, 4096).decode(errors="replace")
        before, _, self._shown = self._shown.partition(wanted)
        return before + wanted

    def close(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        os.close(self._terminal)
        return os.waitstatus_to_exitcode(status)


@pytest.fixture
def terminal(server: Server, tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(server.url, tmp_path)
    terminal.read_until(">>>")
    yield terminal
    terminal.type("\x04")
    assert terminal.close() == 0


def test_a_conversation_with_commands_and_a_stop(terminal: Terminal) -> None:
    terminal.type("What is nano?\r")
    shown = terminal.read_until("tokens/s")
    assert "\x1b[2m" in shown  # thoughts are dimmed
    assert "demonstration" in shown
    terminal.read_until(">>>")
    terminal.type("/effort high\r")
    terminal.read_until("Reasoning effort: high.")
    terminal.read_until(">>>")
    terminal.type("What can you do?\r")
    terminal.read_until("The")  # it thinks
    terminal.type("\x03")
    terminal.read_until("stopped")
    terminal.read_until(">>>")
    terminal.type("/retry\r")
    assert "questions" in terminal.read_until("tokens/s")
    terminal.read_until(">>>")
    terminal.type("\x1b[200~What is\nnano?\x1b[201~")  # pasted: its line break does not send
    terminal.type("\r")
    assert "demonstration" in terminal.read_until("tokens/s")
    terminal.read_until(">>>")
    terminal.type("/thi\t")
    terminal.read_until("nk")
    terminal.type(" off\r")
    terminal.read_until("Reasoning is hidden.")
    terminal.read_until(">>>")
