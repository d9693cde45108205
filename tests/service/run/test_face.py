"""What a person sees when the server starts on a terminal."""

from __future__ import annotations

import fcntl
import html
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from importlib.metadata import version
from pathlib import Path

import pytest

from tests import loopback

pytestmark = pytest.mark.heavy

COMMAND = str(Path(sys.executable).parent / "harmonium")
PICTURE = Path(__file__).parents[3] / "docs" / "pictures" / "start.svg"
WITHIN_S = 120
URL = "(?:In a browser:|The API is at) http://"  # with and without pages
CLEAR = "\r\x1b[2K"


def start(cache: Path, wanted: str, *arguments: str, columns: int = 80) -> str:
    """What a start shows on a terminal until it shows something, colours left out."""
    pid, terminal = pty.fork()
    if pid == 0:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("NIM_")}
        environment |= {"NIM_CACHE_PATH": str(cache), "NIM_MODEL_NAME": "nano", "TERM": "xterm"}
        os.execve(COMMAND, [COMMAND, "serve", "--port", "0", *arguments], environment)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    shown, deadline = "", time.monotonic() + WITHIN_S
    while not re.search(wanted, shown):
        assert time.monotonic() < deadline, shown
        if select.select([terminal], [], [], 1)[0]:
            shown += os.read(terminal, 65536).decode(errors="replace")
    os.kill(pid, signal.SIGINT)
    while True:
        try:
            rest = os.read(terminal, 65536)
        except OSError:
            break
        if not rest:
            break
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)
    return re.sub(r"\x1b\[[0-9;]*m", "", shown).replace("\r\n", "\n")


def test_a_terminal_shows_a_few_lines_and_the_url_last(tmp_path: Path) -> None:
    shown = start(tmp_path, rf"{URL}\S+")
    drawn = shown.split(CLEAR)
    assert any(re.search("loading the model … [0-9]+ s", each) for each in drawn)
    lines = [line for each in shown.split("\n") if (line := each.rpartition(CLEAR)[2])]
    assert re.fullmatch(rf"{URL}{re.escape(loopback.IN_URL)}:\d+", lines[-1])
    assert len(lines) <= 10
    assert all(len(line) <= 80 for line in lines)
    assert "INFO" not in shown
    text = " ".join(lines)
    assert "nano by the native engine" in text
    assert "python3 tools/install.py llama-cpp" in text or "harmonium profiles" in text
    # The picture in docs/ shows what is shown.
    picture = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", PICTURE.read_text())).split())
    release = f"Harmonium {version('harmonium')}: nano"
    for words in (
        release,
        "by the native engine on",
        "a context of 4,096 tokens",
    ):
        assert words in picture
        assert words in text


@pytest.mark.slow
def test_log_lines_are_shown_on_a_terminal_where_they_are_asked_for(tmp_path: Path) -> None:
    shown = start(tmp_path, r"Ready after .* on http://\S+", "-v", columns=120)
    assert re.search(r"INFO +\d{4}-\d\d-\d\d [\d:.]+ Profile: native-cpu", shown)
    assert "…" not in shown.split("Profile:")[0]
