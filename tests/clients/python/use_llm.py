"""llm, the command-line tool: chat completions and responses."""

import json
import os
import subprocess
import sys
from pathlib import Path

URL, KEY = os.environ["HARMONIUM_URL"], os.environ["HARMONIUM_API_KEY"]
LLM = [
    str(Path(sys.executable).with_name("llm")),
    *("openai", "endpoint", f"{URL}/v1", "-m", "gpt-oss-20b", "--key", KEY),
]
QUESTION = "What is the weather in Zürich?"
ANSWER = "It is sunny in Zürich."
WEATHER = 'def weather(city: str) -> str:\n    "The weather in a city"\n    return "sunny"'


def _ask(*options: str) -> str:
    command = [*LLM, "--hide-reasoning", *options, QUESTION]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def chat():
    assert _ask("--no-stream") == ANSWER


def stream():
    assert _ask() == ANSWER


def tools():
    assert _ask("--functions", WEATHER) == ANSWER


def structured():
    assert json.loads(_ask("--schema", "city, degrees int")) == {"city": "Zürich", "degrees": 21}


def responses():
    assert _ask("--responses") == ANSWER
    assert _ask("--responses", "--functions", WEATHER) == ANSWER
