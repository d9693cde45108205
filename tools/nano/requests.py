"""Requests for tools: what the user says and the call that answers it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from tools.nano.names import LOOKUP_VERBS
from tools.nano.tools import ToolSpec
from tools.nano.values import Param, Value, link, spoken
from tools.nano.words import Words

_NO_VERB_SHARE = 0.25
_NEVER_ALONE = ("bool", "list")  # kinds whose values only their parameter's name tells apart
_NUMBERS = frozenset({"int", "count", "decimal"})
_CAPITALISED = frozenset({"place", "person", "title"})


@dataclass(frozen=True, slots=True)
class Request:
    """What the user says and the call that answers it."""

    text: str
    tool: str
    arguments: dict[str, Value]


def ask(words: Words, spec: ToolSpec, says_verb: bool = False) -> Request:
    """Word a request for the tool, with the values its call must carry.

    Training also asks for made-up tools by their noun alone, unless `says_verb`.
    """
    if spec.requests:
        return _ask_listed(words, spec)
    is_train = words.split == "train"
    if is_train and not says_verb and spec.thing and words.rng.random() < _NO_VERB_SHARE:
        spec = replace(spec, verb=words.noun() if words.rng.random() < 0.3 else "")
    return _ask_made_up(words, spec)


def _ask_listed(words: Words, spec: ToolSpec) -> Request:
    form = words.rng.choice(spec.requests)
    form = re.sub(r"\[(.*?)\]", lambda match: match[1] if words.rng.random() < 0.4 else "", form)
    used = [param for param in spec.params if f"{{{param.name}}}" in form]
    values = {param.name: param.draw(words) for param in used}
    text = form.format(**{param.name: spoken(param, values[param.name]) for param in used})
    style = words.rng.random()
    if style < 0.15 and form[0] != "{":
        text = text[0].lower() + text[1:].rstrip(".?!")
    elif style < 0.35:
        text = words.opening("request openings") + text
    elif style < 0.42:
        text = text.rstrip(".?!") + words.say("closers")
    return Request(text, spec.name, values)


def _ask_made_up(words: Words, spec: ToolSpec) -> Request:
    rng = words.rng
    used = [param for param in spec.params if param.is_required or rng.random() < 0.5]
    values = {param.name: param.draw(words) for param in used}
    said = list(used)
    if rng.random() < 0.3:
        rng.shuffle(said)
    before = _said_before(words, said)
    thing = f"{spoken(before, values[before.name])} {spec.thing}" if before else spec.thing
    links = [
        spoken(param, values[param.name])
        if param.name == spec.thing and rng.random() < 0.7  # "the word tree"
        else link(words, param, values[param.name], _must_name(words, param, said))
        for param in said
        if param is not before
    ]
    glue = rng.choice([" ", " ", " ", ", ", " and "])
    args = f" {glue.join(links)}" if links else ""
    return Request(_sentence(words, spec.verb, thing, args), spec.name, values)


def _said_before(words: Words, said: list[Param]) -> Param | None:
    """Draw a parameter whose value stands before the noun, as in 'a small pizza'."""
    fitting = [param for param in said if param.kind in ("enum", "count")]
    share = 0.6 if words.is_late and len(said) == 2 else 0.25
    return fitting[0] if fitting and words.rng.random() < share else None


def _must_name(words: Words, param: Param, said: list[Param]) -> bool:
    """Say whether only its parameter's name tells what a value is for."""
    kinds = _NEVER_ALONE if words.is_late else (*_NEVER_ALONE, "word")
    if param.kind in kinds or words.rng.random() < 0.4:
        return True
    return any(other is not param and _group(other) == _group(param) for other in said)


def _group(param: Param) -> str:
    if param.kind in _NUMBERS:
        return "number"
    return "name" if param.kind in _CAPITALISED else param.kind


def _sentence(words: Words, verb: str, thing: str, args: str) -> str:
    rng = words.rng
    is_lookup = verb in LOOKUP_VERBS or not verb
    opener = words.filler(0.3) or words.say("lookups" if is_lookup else "actions")
    if not is_lookup:
        opener += f" {verb} {words.say('articles')}"
    closer = f" {words.filler(0.12)}".rstrip() or words.say("closers")
    text = f"{opener} {thing}{args}{closer}"
    if args and rng.random() < 0.12:  # the arguments first: 'For Paris: show the weather'
        mark = rng.choice([", ", ": ", " "])
        text = f"{args.strip()}{mark}{opener.strip().lower()} {thing}{closer}"
    text = re.sub(r" +", " ", text).strip()
    return text[0].upper() + text[1:] + rng.choice([".", ".", "?", "", "!"])
