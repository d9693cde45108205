"""Ask nano the quickstart examples at temperature 0, through what the service enforces.

python -m tools.nano.quickstart_report [--source FOLDER] [--device cuda] [--out FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema

from engines.grammar.tree import Grammar
from engines.native.config import NativeConfig
from engines.native.engine import NativeEngine
from profiles.checkpoints.compact import bundled_nano, expand
from service.chat_format import format_named
from service.conversation import Conversation
from service.guide.answer import AUTO, TEXT, AnswerFormat, ToolChoice, answer_grammar
from service.harmony.vocabulary import write_vocabulary
from tools.nano.asking import config_for, generate
from tools.nano.dialogues import Turn
from tools.nano.judge import Written, parse
from tools.nano.quickstarts import ANY, Quickstart, held_out, quickstarts


def grammar_of(one: Quickstart, prompt: Conversation) -> Grammar | None:
    """Return what the service enforces for the example's fields."""
    choice = AUTO
    if one.must_call:
        named = one.must_call != "any"
        choice = ToolChoice.named(one.must_call) if named else ToolChoice("required")
    format = prompt.response_format
    wanted = AnswerFormat("json_schema", format.schema) if format else TEXT
    return answer_grammar(format_named("harmony"), prompt.tools, choice, wanted)


def is_right(one: Quickstart, written: Written) -> bool:
    """Say whether an answer is a sensible one: the wanted values, and all that the schema asks."""
    value = _answer(one, written)
    if not isinstance(value, dict) or not written.is_clean:
        return False
    schema = _schema(one)
    if not jsonschema.Draft202012Validator({**schema, "additionalProperties": False}).is_valid(
        value
    ):
        return False
    return all(
        key in value and any(_agrees(wish, value[key]) for wish in wishes)
        for key, wishes in one.values.items()
    )


def _schema(one: Quickstart) -> Mapping[str, Any]:
    if one.prompt.response_format:
        return one.prompt.response_format.schema
    tool = next(tool for tool in one.prompt.tools if tool.name == one.call)
    return tool.parameters or {"type": "object", "properties": {}}


def _answer(one: Quickstart, written: Written) -> Any:
    text = written.content
    if one.call:
        if [name for name, _ in written.calls] != [one.call]:
            return None
        text = written.calls[0][1]
    try:
        return json.loads(text)
    except ValueError:
        return None


def _agrees(wish: Any, value: Any) -> bool:
    if wish == ANY:
        return True
    if isinstance(wish, str):
        return isinstance(value, str) and wish.casefold() == value.strip(" .").casefold()
    if isinstance(wish, list):
        same = isinstance(value, list) and len(wish) == len(value)
        return same and all(map(_agrees, wish, value))
    if isinstance(wish, dict):
        same = isinstance(value, dict) and wish.keys() == value.keys()
        return same and all(_agrees(wish[key], value[key]) for key in wish)
    return isinstance(wish, bool) == isinstance(value, bool) and bool(wish == value)


async def measure(
    config: NativeConfig, folder: Path, chosen: Iterable[Quickstart] = ()
) -> dict[str, list[str]]:
    """Ask every example at temperature 0; return the wrong answers by id.

    `folder` is for the vocabulary's file, which the engine enforces schemas with.
    """
    engine = NativeEngine(replace(config, vocabulary_path=write_vocabulary(folder)))
    await engine.start()

    async def ask(one: Quickstart, prompt: Conversation) -> list[str]:
        turn = Turn("quickstart", prompt, ())
        written = parse(turn, *await generate(engine, turn, 0.0, grammar=grammar_of(one, prompt)))
        said = written.calls or written.content
        return [] if is_right(one, written) else [f"{said}"]

    asked = [(one, prompt) for one in chosen or quickstarts() for prompt in one.ways()]
    try:
        wrong = await asyncio.gather(*(ask(one, prompt) for one, prompt in asked))
    finally:
        await engine.stop()
    found: dict[str, list[str]] = {one.id: [] for one, _ in asked}
    for (one, _), some in zip(asked, wrong, strict=True):
        found[one.id] += some
    return found


def main() -> None:
    """Read the command line and print what is right, and what is not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, default=bundled_nano())
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "nano"
        expand(arguments.source, checkpoint)
        config = config_for(checkpoint, arguments.device)
        found = asyncio.run(measure(config, Path(folder)))
    for half, ids in (("held out", held_out()), ("trained", found.keys() - held_out())):
        right = [name for name in found if name in ids and not found[name]]
        print(f"{half}: {len(right)} of {len(ids)} right")
        for name in found:
            if name in ids and found[name]:
                print(f"  {name}: {'; '.join(found[name])}")
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
