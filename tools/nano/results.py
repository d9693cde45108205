"""What tools return: made-up results as JSON or plain text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tools.nano.values import Value
from tools.nano.words import Words

_KEYS = """temperature condition status price id result total unit name city location humidity time
date message count value speed currency title email url""".split()


def make_result(words: Words, arguments: Mapping[str, Value]) -> str:
    """Make up what a tool returns for the arguments."""
    rng = words.rng
    style = rng.random()
    if style < 0.58:
        return _dump(words, _object(words, arguments))
    if style < 0.66:
        return _dump(words, [_scalar(words) for _ in range(rng.randint(1, 3))])
    if style < 0.70:
        rows = [_object(words, {}, most=2) for _ in range(2)]
        return _dump(words, rows)
    if style < 0.75:
        return _dump(words, {"error": words.phrase(1, 5)})
    return "" if style < 0.77 else _plain(words, arguments)


def _dump(words: Words, value: Any) -> str:
    separators = (",", ":") if words.rng.random() < 0.4 else (", ", ": ")
    return json.dumps(value, separators=separators, ensure_ascii=False)


def _object(words: Words, arguments: Mapping[str, Value], most: int = 4) -> dict[str, Value]:
    rng = words.rng
    made: dict[str, Value] = {}
    if arguments and rng.random() < 0.4:
        key = rng.choice(list(arguments))
        made[key] = arguments[key]
    for _ in range(rng.randint(1, most - len(made)) if len(made) < most else 0):
        made[_key(words)] = _scalar(words)
    if rng.random() < 0.08:
        made[_key(words)] = {_key(words): _scalar(words), _key(words): _scalar(words)}
    return made


def _key(words: Words) -> str:
    key = words.rng.choice(_KEYS) if words.rng.random() < 0.5 else words.noun()
    return f"{key}_{words.noun()}" if words.rng.random() < 0.15 else key


def _scalar(words: Words) -> Value:
    rng = words.rng
    style = rng.random()
    if style < 0.25:
        return words.number() * (-1 if rng.random() < 0.12 else 1)
    if style < 0.38:
        return words.decimal()
    if style < 0.44:
        return rng.random() < 0.5
    if style < 0.70:
        return words.phrase(1, 3)
    drawn = [words.place, words.person, words.code, words.date, words.email]
    return rng.choice(drawn)()


def _plain(words: Words, arguments: Mapping[str, Value]) -> str:
    rng = words.rng
    scalars = [item for item in arguments.values() if isinstance(item, str | int | float)]
    about = str(rng.choice(scalars)) if scalars else words.noun()
    forms = [
        f"{words.number()}",
        f"{words.number()}",
        f"{words.decimal()}",
        words.phrase(1, 4),
        f"{words.place()}",
        f"{words.number()} degrees",
        f"{words.number()} degrees, {words.noun()}",
        f"The {words.noun()} in {about} is {words.noun()}.",
        f"It is {words.noun()} in {about}, {words.number()} degrees.",
        f"{about}: {words.phrase(1, 3)}",
        f"{words.noun().capitalize()} and {words.number()}°C",
        f"OK, {words.code()}",
        f"Done: {words.phrase(1, 4)}.",
        f"{words.date()} {rng.randint(10, 23)}:{rng.randint(10, 59)}",
    ]
    return rng.choice(forms)


def leaves(content: str) -> Iterator[str]:
    """Yield every value in a result as the text an answer must hold."""
    try:
        value = json.loads(content)
    except ValueError:
        value = content
    yield from _leaves(value if isinstance(value, dict | list) else content)


def _leaves(value: Value) -> Iterator[str]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item)
    elif value != "":
        yield value if isinstance(value, str) else json.dumps(value)
