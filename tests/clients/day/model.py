"""What the scripted model says during an agent's day; it depends on the prompt alone.

It does what the last `Turn N: …` asks, with the tools that the agent offers, and repeats what it
has read. A fact is told as `Fact: …`; asked for the facts, it gives those that are in the prompt,
which a summary keeps. So an answer shows what has reached the model.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from typing import Any

from service.harmony import vocabulary
from tests.clients.model import call, final

TURN = re.compile(r"Turn \d+: ([^\n<]+)")
FACT = re.compile(r"Fact: ([^.\n<]+)\.")
RESULT = re.compile(
    r"<\|start\|>(?:functions\.)?(\S+) to=assistant<\|channel\|>\w+<\|message\|>(.*?)<\|end\|>",
    re.DOTALL,
)
LAST_USER = re.compile(r"<\|start\|>user<\|message\|>(?:(?!<\|start\|>user).)*$", re.DOTALL)
ASKS_SUMMARY = re.compile(r"CONTEXT CHECKPOINT COMPACTION|detailed summary of the conversation")
WEB_SEARCH = re.compile(r"Perform a web search for the query: ([^\n<]+)")
STORY = " ".join(f"wave-{number}" for number in range(600))
MOST_SHOWN = 300


def write(prompt_token_ids: Sequence[int]) -> Sequence[int]:
    """The ids that the engine gives for a prompt."""
    prompt = vocabulary.decode_marked(prompt_token_ids)
    if path := os.environ.get("DAY_LOG"):
        with open(path, "a") as file:
            file.write(f"\n=====\n{prompt}\n--> {answer(prompt)}\n")
    return vocabulary.encode_marked(answer(prompt))


def answer(prompt: str) -> str:
    """What the model writes, as Harmony text."""
    asked = LAST_USER.search(prompt)
    request = asked[0] if asked else prompt
    if found := WEB_SEARCH.search(request):  # Claude Code asks for it in a request of its own
        return use("browser.search", {"query": found[1]}, prompt, RESULT.findall(request))
    tasks = list(TURN.finditer(request))
    if tasks:
        return do(tasks[-1][1].strip(), prompt, RESULT.findall(request[tasks[-1].end() :]))
    if ASKS_SUMMARY.search(request):
        return final(f"SUMMARY. {facts(prompt)}")
    return final("Hello! I am a scripted model.")


def facts(prompt: str) -> str:
    """Those of the prompt, each once."""
    return " ".join(f"Fact: {fact}." for fact in dict.fromkeys(FACT.findall(prompt)))


def do(task: str, prompt: str, results: list[tuple[str, str]]) -> str:
    """Answer a task, or take its next step."""
    verb, _, rest = task.partition(" ")
    match verb:
        case "Fact:":
            return final("Noted.")
        case "recall":
            return final(facts(prompt) or "I know nothing.")
        case "tell":
            return final(STORY)
    return use(*step(verb, rest, prompt), prompt, results)


def use(tool: str, arguments: dict[str, Any], prompt: str, results: list[tuple[str, str]]) -> str:
    """Call a tool, which may have to be found before; then say what it gave."""
    given = [text for name, text in results if name.endswith(tool)]
    if given:
        return final(f"It says: {' '.join(given[-1].split())[:MOST_SHOWN]}")
    if tool == "browser.search":
        header = "<|channel|>analysis to=browser.search code<|message|>"
        return f"{header}{json.dumps(arguments)}<|call|>"
    if found := re.search(rf"^type (\S*{re.escape(tool)}) = ", prompt, re.MULTILINE):
        return call(found[1], arguments)
    listed = re.search(rf"^(mcp__\w+__)?{re.escape(tool)}$", prompt, re.MULTILINE)
    if listed and "ToolSearch" not in [name for name, _ in results]:
        return call("ToolSearch", {"query": f"select:{listed[0]}"})
    return final(f"I have no {tool}.")


def step(verb: str, rest: str, prompt: str) -> tuple[str, dict[str, Any]]:
    """The tool for a task, as the agent has it, and what it is given."""
    is_codex = "type exec_command = " in prompt
    match verb:
        case "call":
            name, _, ship = rest.partition(" for ")
            return name, {"ship": ship} if ship else {}
        case "search":
            return "browser.search" if is_codex else "WebSearch", {"query": rest}
        case "write":
            path, _, text = rest.partition(" = ")
            if is_codex:
                return "exec_command", {"cmd": f"printf '%s\\n' '{text}' > {path}"}
            return "Write", {"file_path": path, "content": f"{text}\n"}
        case "look" if is_codex:
            return "view_image", {"path": rest}
    return ("exec_command", {"cmd": f"cat {rest}"}) if is_codex else ("Read", {"file_path": rest})
