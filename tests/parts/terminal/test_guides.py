"""The guides of single clients say what `harmonium clients` prints, on one screen."""

from __future__ import annotations

import itertools
import json
import shlex
import tomllib

import pytest

from parts.terminal.clients.configurations import CONFIGURATIONS, Target
from tests.guides.pages import GUIDES, block

AT = Target("http://127.0.0.1:8000", "gpt-oss-20b", 131_072, has_key=True)


@pytest.mark.parametrize(
    ("guide", "client"), [("codex", "codex"), ("claude-code", "claude"), ("qwen-code", "qwen")]
)
def test_a_guide_has_the_lines_that_are_run(guide: str, client: str) -> None:
    assert block(guide, "console") == CONFIGURATIONS[client](AT) + "\n"


@pytest.mark.parametrize("guide", ["codex", "claude-code", "qwen-code", "vscode", "n8n"])
def test_a_guide_is_one_screen(guide: str) -> None:
    lines = (GUIDES / f"{guide}.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 50


def test_codexs_file_says_what_its_line_says() -> None:
    _, *words = shlex.split(block("codex", "console"))
    given = {"model": json.dumps(words[words.index("-m") + 1])}
    given |= dict(word.split("=", 1) for flag, word in itertools.pairwise(words) if flag == "-c")
    given["model_provider"] = json.dumps(given["model_provider"])
    said = tomllib.loads("\n".join(f"{name} = {value}" for name, value in given.items()))
    assert tomllib.loads(block("codex", "toml")) == said


def test_claudes_file_says_what_its_line_says() -> None:
    words = shlex.split(block("claude-code", "console"))
    said = dict(word.split("=", 1) for word in words if "=" in word)
    assert said.pop("ANTHROPIC_AUTH_TOKEN") == "$HARMONIUM_API_KEY"
    given = json.loads(block("claude-code", "json"))["env"]
    assert given.pop("ANTHROPIC_AUTH_TOKEN") == "hmk_…"
    assert given == said
