"""Made-up tools: a verb, a noun and parameters that no list holds."""

from __future__ import annotations

from collections.abc import Sequence

from tools.nano.names import HELD_OUT_VERBS, LOOKUP_VERBS, VERBS
from tools.nano.tools import ToolSpec
from tools.nano.values import USUAL_NAMES, Param
from tools.nano.words import Words, is_held_out

# Of the tools in training: named, or described, with other words than requests use.
_OTHER_NAME_SHARE = 0.08
_OTHER_WORDS_SHARE = 0.15
_OTHER_KINDS = "word title quoted code int decimal bool enum email date list".split()
_CHOICE_SHARE = 0.1  # of late tools: a choice and a value that says nothing of its parameter
_SAME_NAME_SHARE = 0.05  # of late tools: the parameter is called as what is asked for
_BARE_KINDS = ("word", "word", "phrase")
_LATE_KINDS = [*_OTHER_KINDS, "word", "phrase", "time"]  # in training's last part


def make_tool(words: Words, verb: str = "", noun: str = "") -> ToolSpec:
    """Make up a tool around a noun, with up to four parameters, whose name is of this side."""
    while True:
        spec = _make_any_tool(words, verb or _verb(words), noun or words.noun())
        if is_held_out(spec.name) == (words.split == "heldout"):
            return spec


def _make_any_tool(words: Words, verb: str, noun: str) -> ToolSpec:
    rng = words.rng
    second = words.noun() if rng.random() < 0.2 else ""
    thing = f"{noun} {second}".strip()
    is_named = words.split == "heldout" or rng.random() > _OTHER_NAME_SHARE
    name = _name(words, [verb, *thing.split()] if is_named else [verb, words.noun()])
    params = _make_params(words, taken={noun, second})
    described = _describe(words, verb, thing, params, is_told=not is_named)
    if not name.startswith(verb):
        verb = ""
    return ToolSpec(name, described, params, verb=verb, thing=thing)


def _verb(words: Words) -> str:
    """Draw a verb; any word may be one, so that a name's start must be read, not known."""
    style = words.rng.random()
    if style < 0.35:
        return words.rng.choice(LOOKUP_VERBS)
    return words.choose(VERBS, HELD_OUT_VERBS) if style < 0.55 else words.noun()


def _name(words: Words, parts: list[str]) -> str:
    style = words.rng.random()
    if style < 0.12:
        return parts[0] + "".join(part.capitalize() for part in parts[1:])
    if style < 0.2:
        return "_".join(parts[1:])
    return "-".join(parts) if style < 0.24 else "_".join(parts)


def _describe(
    words: Words, verb: str, thing: str, params: Sequence[Param], is_told: bool = False
) -> str:
    """Describe a tool, if `is_told` with the words of requests for it."""
    if not is_told and words.rng.random() < 0.12:
        return ""
    if not is_told and words.split == "train" and words.rng.random() < _OTHER_WORDS_SHARE:
        return other_words(words)
    verb = {"lookup": "look up", "query": "get"}.get(verb, verb).capitalize()
    forms = [
        f"{verb} the {thing}",
        f"{verb} a {thing}",
        f"{verb} {thing}",
        f"{verb} the current {thing}",
    ]
    text = words.rng.choice(forms)
    if params and words.rng.random() < 0.4:
        text += f" for a given {params[0].name}"
    return text + "."


def _make_params(words: Words, taken: set[str]) -> tuple[Param, ...]:
    rng = words.rng
    if words.is_late and "" in taken and rng.random() < _SAME_NAME_SHARE:
        kind = rng.choice([*_BARE_KINDS, "code", "title"])
        return (Param(next(filter(None, taken)), kind),)
    if words.is_late and rng.random() < _CHOICE_SHARE:
        both = [_make_param(words, kind, False) for kind in ("enum", rng.choice(_BARE_KINDS))]
        if len({*taken, *(param.name for param in both)}) == len(taken) + 2:
            return tuple(both)
    params: list[Param] = []
    kinds = _LATE_KINDS if words.is_late else _OTHER_KINDS
    for _ in range(rng.choices(range(5), [10, 45, 30, 11, 4])[0]):
        kind = rng.choice(["place", "person", "count", "bare"]) if not params else ""
        param = _make_param(words, kind or rng.choice(kinds), bool(params))
        if param.name not in taken:
            taken.add(param.name)
            params.append(param)
    return tuple(sorted(params, key=lambda param: not param.is_required))


def _make_param(words: Words, kind: str, may_be_optional: bool) -> Param:
    rng = words.rng
    is_usual = kind in USUAL_NAMES and rng.random() < 0.5
    name = rng.choice(USUAL_NAMES[kind]) if is_usual else words.noun()
    if rng.random() < 0.15:
        name = f"{words.noun()}_{name}"
    choices: tuple[str, ...] = ()
    if kind == "enum":
        choices = tuple(dict.fromkeys(words.noun() for _ in range(rng.randint(2, 4))))
    if kind == "bare":
        kind = rng.choice(["code", "email", "title", "int", "quoted"])
        name = rng.choice(["id", "number", "name", "title", "key", name, name, name])
    description = describe_param(words, name) if rng.random() < 0.3 else ""
    return Param(name, kind, not may_be_optional or rng.random() < 0.6, choices, description)


def describe_param(words: Words, name: str) -> str:
    """Describe a parameter, in training also with other words than its name's."""
    plain = name.replace("_", " ")
    forms = [f"The {plain}", f"The {plain} to use", f"A {plain}, e.g. {words.noun()}"]
    if words.split == "train":
        forms += [
            other_words(words),
            f"The {words.noun()} and {words.noun()}, e.g. {words.place()}",
        ]
    return words.rng.choice(forms)


def other_words(words: Words) -> str:
    """Describe something with words that say nothing about it."""
    return f"{words.phrase(2, 6).capitalize()}{words.rng.choice(['.', ''])}"
