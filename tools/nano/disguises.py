"""Listed tools in disguise: with other words in the place of their own, in training.

A list that training meets as it is is learnt by heart, and an unknown tool is then taken for
the listed one whose requests look alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from tools.nano.made_up import describe_param, other_words
from tools.nano.phrases import phrases
from tools.nano.tools import ToolSpec, listed_tools
from tools.nano.values import USUAL_NAMES, Param
from tools.nano.vocabulary import stem
from tools.nano.words import Words, is_held_out

_DISGUISED_SHARE = 0.8
_REWORDED_SHARE = 0.12  # of the tools in disguise
_REWORDED_PLAIN_SHARE = 0.25  # of the others, which are known by heart otherwise
_SWAPPED_SHARES = (0.5, 0.8, 1.0)  # of a tool's words
_USUAL_SHARE = 0.3  # of the parameters whose kind has usual names
# Besides the function words: what many tools and requests have in common.
_DULL = """get find check set create list send search make add run show tell give need want please
what when where who which how much many does did are would could should can let lets""".split()


def listed_tool(words: Words) -> ToolSpec:
    """Draw a tool from the list of this side, as it is offered."""
    spec = words.rng.choice(listed_tools(words.split))
    if words.split == "heldout":
        return spec
    seen = mostly_disguised(words, spec)
    share = _REWORDED_PLAIN_SHARE if seen is spec else _REWORDED_SHARE
    return reworded(words, seen) if words.rng.random() < share else seen


def mostly_disguised(words: Words, spec: ToolSpec) -> ToolSpec:
    """Return a listed tool as training mostly meets it; on the held-out side as it is."""
    is_train = words.split == "train"
    return disguised(words, spec) if is_train and words.rng.random() < _DISGUISED_SHARE else spec


def reworded(words: Words, spec: ToolSpec) -> ToolSpec:
    """Return the tool as others might describe it: in other words or in none, parameters too.

    Requests that the name has no word in common with are dropped; where none is left, the
    tool stays as it is.
    """
    named = _stems(spec.name.replace("_", " "))
    requests = tuple(text for text in spec.requests if named & _stems(_always_said(text)))
    if not requests:
        return spec
    description = other_words(words) if words.rng.random() < 0.6 else ""
    params = tuple(
        replace(param, description=describe_param(words, param.name)) for param in spec.params
    )
    return replace(spec, description=description, params=params, requests=requests)


def disguised(words: Words, spec: ToolSpec) -> ToolSpec:
    """Return the tool with other words, the same ones in name, schema and requests.

    Requests that name the tool in no word of its own are dropped; where none is left, or the
    new name is of the other side of the split, the tool stays as it is.
    """
    requests = tuple(text for text in spec.requests if _own(spec) & _stems(_always_said(text)))
    share = words.rng.choice(_SWAPPED_SHARES)
    told = " ".join([spec.description, *requests])
    stems = sorted(_own(spec) | _stems(told) | _stems_of_params(spec))
    swaps = {old: words.noun() for old in stems if words.rng.random() < share}
    params = tuple(_disguised_param(words, param, swaps) for param in spec.params)
    renamed = {old.name: new.name for old, new in zip(spec.params, params, strict=True)}
    name = "_".join(_swapped(part, swaps) for part in spec.name.split("_"))
    if not requests or len(set(renamed.values())) < len(renamed) or is_held_out(name):
        return spec
    asked = tuple(_renamed(_swapped(text, swaps), renamed) for text in requests)
    return ToolSpec(name, _swapped(spec.description, swaps), params, asked)


def _own(spec: ToolSpec) -> frozenset[str]:
    """Return the words by which a request can name the tool."""
    return _stems(f"{spec.name.replace('_', ' ')} {spec.description}")


def _always_said(request: str) -> str:
    return re.sub(r"\[.*?\]", " ", request)


def _stems_of_params(spec: ToolSpec) -> frozenset[str]:
    names = (param.name.replace("_", " ") for param in spec.params)
    choices = (choice for param in spec.params for choice in param.choices)
    return _stems(" ".join([*names, *choices]))


def _stems(text: str) -> frozenset[str]:
    """Return the words of a text that say something, without what stands in braces."""
    bare = re.sub(r"\{\w+\}", " ", text)
    return frozenset(map(stem, re.findall(r"[A-Za-z]{2,}", bare))) - _dull()


@cache
def _dull() -> frozenset[str]:
    return frozenset(map(stem, [*phrases("function words").train, *_DULL]))


def _disguised_param(words: Words, param: Param, swaps: Mapping[str, str]) -> Param:
    usual = USUAL_NAMES.get(param.kind)
    if usual and words.rng.random() < _USUAL_SHARE:
        name = words.rng.choice(usual)
    else:
        name = "_".join(_swapped(part, swaps) for part in param.name.split("_"))
    choices = tuple(dict.fromkeys(_swapped(choice, swaps) for choice in param.choices))
    return replace(param, name=name, choices=choices)


def _swapped(text: str, swaps: Mapping[str, str]) -> str:
    """Return the text with other words, in the case and number of the old ones."""

    def swap(match: re.Match[str]) -> str:
        old = match[0]
        if (new := swaps.get(stem(old))) is None:
            return old
        if stem(old) != old.lower() and new[-1] != "s":
            new += "s"
        return new.capitalize() if old[0].isupper() else new

    return re.sub(r"(?<!{)\b[A-Za-z]{2,}\b(?!})", swap, text)


def _renamed(text: str, names: Mapping[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: f"{{{names[match[1]]}}}", text)
