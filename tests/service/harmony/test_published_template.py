"""Our prompts beside those of the published chat template, byte for byte.

The template is the one that the hub serves, by its SHA-256; llama.cpp's source has a copy.
"""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Template
from jinja2.sandbox import ImmutableSandboxedEnvironment

from profiles.catalogue.catalogue import load
from service.conversation import Conversation, Message, Tool, ToolCall
from service.harmony.render import render
from service.harmony.vocabulary import decode_marked
from tests.sdist import fetch_source

pytestmark = pytest.mark.slow  # fetches 77 MB

ROOT = Path(__file__).parents[3]
DATE = "2025-08-05"
WEATHER = {
    "name": "get_weather",
    "description": "Weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Its name"},
            "unit": {"type": "string", "enum": ["C", "F"]},
            "days": {"type": "number"},
        },
        "required": ["city"],
    },
}
SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Weather in Rome?"}
CALLS = {
    "role": "assistant",
    "content": "",
    "thinking": "I ask.",
    "tool_calls": [
        {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Rome"}}}
    ],
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = project["optional-dependencies"]["llama-cpp"][0]
    source = fetch_source(pinned, "scikit_build_core.build", tmp_path_factory.mktemp("source"))
    with tarfile.open(source) as files:
        pattern = re.compile(r".*/models/templates/openai-gpt-oss-120b\.jinja")
        member = next(each for each in files.getmembers() if pattern.fullmatch(each.name))
        read = files.extractfile(member)
        assert read is not None
        text = read.read()
    for name in ("gpt-oss-20b", "gpt-oss-120b"):
        artifacts = load().models[name].artifacts
        assert artifacts is not None
        published = next(file for file in artifacts.files if file.name == "chat_template.jinja")
        assert hashlib.sha256(text).hexdigest() == published.sha256
    # As transformers sets it up.
    extensions = ["jinja2.ext.loopcontrols"]
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=extensions
    )
    made.globals["strftime_now"] = lambda _: DATE
    made.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    return made.from_string(text.decode())


def theirs(template: Template, *messages: dict[str, Any], tools: bool = False) -> str:
    given = [{"type": "function", "function": WEATHER}] if tools else None
    return template.render(
        messages=list(messages), tools=given, add_generation_prompt=True, reasoning_effort="medium"
    )


def ours(*messages: Message, tools: bool = False) -> str:
    weather = Tool("get_weather", "Weather of a city.", WEATHER["parameters"])  # type: ignore[arg-type]
    return decode_marked(render(Conversation(messages, DATE, (weather,) if tools else ())))


def test_a_question(template: Template) -> None:
    assert ours(Message("user", USER["content"])) == theirs(template, USER)


def test_a_history(template: Template) -> None:
    turns = [Message("user", USER["content"]), Message("assistant", "Sunny."), Message("user", "?")]
    given = [USER, {"role": "assistant", "content": "Sunny."}, {"role": "user", "content": "?"}]
    assert ours(*turns) == theirs(template, *given)


def test_instructions_and_tools(template: Template) -> None:
    turns = [Message("system", "Be brief."), Message("user", USER["content"])]
    assert ours(*turns, tools=True) == theirs(template, SYSTEM, USER, tools=True)


def test_instructions_alone_but_for_the_blank_lines_that_the_template_leaves(
    template: Template,
) -> None:
    """OpenAI's own renderer, whose prompts are in tests/golden, leaves none."""
    turns = [Message("system", "Be brief."), Message("user", USER["content"])]
    found = theirs(template, SYSTEM, USER)
    assert ours(*turns) == found.replace("Be brief.\n\n<|end|>", "Be brief.<|end|>")


def test_a_tool_call_and_its_result_but_for_the_quotes_that_the_template_adds(
    template: Template,
) -> None:
    """OpenAI's own renderer hands a result on as it is."""
    call = ToolCall("c", "get_weather", '{"city": "Rome"}')
    turns = [
        Message("user", USER["content"]),
        Message("assistant", reasoning="I ask.", tool_calls=(call,)),
        Message("tool", "sunny", tool_call_id="c"),
    ]
    found = theirs(template, USER, CALLS, {"role": "tool", "content": "sunny"}, tools=True)
    assert ours(*turns, tools=True) == found.replace('"sunny"', "sunny")
