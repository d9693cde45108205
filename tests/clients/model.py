"""What the scripted model says to the foreign clients; it depends on the prompt alone.

It knows four tasks and recognises each by its words. Asked for the weather, it calls `weather` if
that is offered, then answers in text or, where a form is asked for, in JSON. Asked to correct a
file, it reads it, edits it and says so, with whichever tools the coding agent offers. Asked to look
at a picture, it reads that and goes on. Asked to read long files, it reads one after the other
until there are no more, or until it is given a summary of what it did, which it writes when an
agent asks for one. All else gets a greeting. It thinks before it calls, so that clients have
reasoning to send back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from service.harmony import vocabulary

WEATHER = "weather in Zürich"
CORRECT = re.compile(r"Correct the spelling mistake in (\S+/notes\.txt)")
READ = re.compile(r"Read the long files in (\S+)/long-1\.txt")
LOOK = re.compile(r"Look at the picture (\S+\.png)")
NUM_LONG = 24
SUMMARY = "SUMMARY: long files were being read."
LAST_REQUEST = re.compile(r"<\|start\|>user<\|message\|>((?:(?!<\|start\|>user).)*)$", re.DOTALL)
ASKS_SUMMARY = re.compile(r"summar|compact|state_snapshot", re.IGNORECASE)
THOUGHT = "<|channel|>analysis<|message|>{}<|end|><|start|>assistant"
REPORT = {"city": "Zürich", "degrees": 21}
# Functions that clients make of the form they want their answer in.
FORMS = ("Report", "PartialReport", "final_result")


def write(prompt_token_ids: Sequence[int]) -> Sequence[int]:
    """The ids that the engine gives for a prompt."""
    return vocabulary.encode_marked(answer(vocabulary.decode_marked(prompt_token_ids)))


def answer(prompt: str) -> str:
    """What the model writes, as Harmony text."""
    if READ.search(prompt) or SUMMARY in prompt:
        return read(prompt)
    if looked := list(LOOK.finditer(prompt)):
        return look(prompt, looked[-1][1], _num_results(prompt[looked[-1].end() :]))
    if corrected := list(CORRECT.finditer(prompt)):
        return correct(prompt, corrected[-1][1], _num_results(prompt[corrected[-1].end() :]))
    if WEATHER in prompt:
        return report(prompt, _num_results(prompt[prompt.rindex(WEATHER) :]))
    if "What is the best book" in prompt:  # llama.cpp's tests, whose model does not think
        return "<|channel|>final<|message|>Suddenly, the best one.<|return|>"
    if "This is a testThis is a test" in prompt:  # the same, with room for eight tokens
        return "<|channel|>final<|message|>Passed.<|return|>"
    if _offers(prompt, "get_weather") and not _num_results(prompt):  # a conformance suite
        return call("get_weather", {"location": "San Francisco, CA"})
    return final("Hello! I am a scripted model.")


def report(prompt: str, num_results: int) -> str:
    """Ask for the weather where one can, then say it in the form that is wanted."""
    if _offers(prompt, "weather") and not num_results:
        return call("weather", {"city": "Zürich"})
    for name in FORMS:
        if _offers(prompt, name):
            return call(name, REPORT)
    if "JSON" in prompt or "# Response Formats" in prompt:
        return final(json.dumps(REPORT, ensure_ascii=False))
    return final("It is sunny in Zürich.")


def correct(prompt: str, path: str, num_results: int) -> str:
    """Read the file, replace `teh` by `the`, say that it is done."""
    for tool, steps in EDITS.items():
        if _offers(prompt, tool):
            if num_results == len(steps):
                return final("I corrected the file.")
            name, arguments = steps[num_results]
            return call(name, json.loads(json.dumps(arguments).replace("PATH", path)))
    return final(BLOCK)


def look(prompt: str, path: str, num_results: int) -> str:
    """Read a picture with the tool that reads files, then say so."""
    if num_results:
        return final("I went on without seeing it.")
    if _offers(prompt, "view_image"):  # Codex
        return call("view_image", {"path": path})
    for tool, steps in EDITS.items():
        if _offers(prompt, tool):
            name, arguments = steps[0]
            return call(name, json.loads(json.dumps(arguments).replace("PATH", path)))
    return final("I cannot look at it.")


def read(prompt: str) -> str:
    """Read the next file, or sum up what was done, or go on from that."""
    asked = LAST_REQUEST.search(prompt)
    request = asked[1].split("<|end|>")[0] if asked else ""
    if SUMMARY in prompt:
        return final("I went on with the summary.")
    if ASKS_SUMMARY.search(request):
        return final(SUMMARY)
    task = list(READ.finditer(prompt))[-1]
    num_results = _num_results(prompt[task.end() :])
    if num_results == NUM_LONG:
        return final("I read all of them.")
    path = f"{task[1]}/long-{num_results + 1}.txt"
    for tool, steps in EDITS.items():
        if _offers(prompt, tool):
            name, arguments = steps[0]
            return call(name, json.loads(json.dumps(arguments).replace("PATH", path)))
    return final("I went on without reading.")


def call(name: str, arguments: dict[str, object]) -> str:
    """A call of a function, thought about."""
    thought = THOUGHT.format(f"I need {name}.")
    header = f"<|channel|>commentary to=functions.{name} <|constrain|>json"
    return f"{thought}{header}<|message|>{json.dumps(arguments, ensure_ascii=False)}<|call|>"


def final(text: str) -> str:
    """An answer, thought about."""
    return f"{THOUGHT.format('I know the answer.')}<|channel|>final<|message|>{text}<|return|>"


def _offers(prompt: str, name: str) -> bool:
    return re.search(rf"^type {re.escape(name)} = ", prompt, re.MULTILINE) is not None


def _num_results(text: str) -> int:
    return text.count(" to=assistant<|channel|>")


PATCH = """*** Begin Patch
*** Update File: PATH
@@
-I like teh sea.
+I like the sea.
*** End Patch"""
DIFF = "@@\n-I like teh sea.\n+I like the sea."
# By the tool that gives the agent away: the calls one after the other.
EDITS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "exec_command": [  # Codex
        ("exec_command", {"cmd": "cat PATH"}),
        ("exec_command", {"cmd": "sed -i 's/teh/the/' PATH"}),
    ],
    "Checklist": [  # Continue
        ("Read", {"filepath": "PATH"}),
        ("MultiEdit", {"file_path": "PATH", "edits": [{"old_string": "teh", "new_string": "the"}]}),
    ],
    "read_files": [  # Cline
        ("read_files", {"files": [{"path": "PATH"}]}),
        ("apply_patch", {"input": PATCH}),
    ],
    "view": [  # GitHub Copilot
        ("view", {"path": "PATH"}),
        ("bash", {"command": "sed -i 's/teh/the/' PATH", "description": "Correct it"}),
    ],
    "Read": [  # Claude Code
        ("Read", {"file_path": "PATH"}),
        ("Edit", {"file_path": "PATH", "old_string": "teh", "new_string": "the"}),
    ],
    "read_file": [  # Qwen Code
        ("read_file", {"file_path": "PATH"}),
        ("edit", {"file_path": "PATH", "old_string": "teh", "new_string": "the"}),
    ],
    "glob": [  # opencode
        ("read", {"filePath": "PATH"}),
        ("edit", {"filePath": "PATH", "oldString": "teh", "newString": "the"}),
    ],
    "read": [  # pi
        ("read", {"path": "PATH"}),
        ("edit", {"path": "PATH", "edits": [{"oldText": "teh", "newText": "the"}]}),
    ],
    "shell": [  # the OpenAI Agents SDK
        ("shell", {"commands": ["cat PATH"]}),
        ("apply_patch", {"type": "update_file", "path": "PATH", "diff": DIFF}),
    ],
}
# aider offers no tools: it reads the whole file out of the answer.
BLOCK = "notes.txt\n```\nI like the sea.\n```\n"
