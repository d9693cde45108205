"""Listed tools in disguise: with other words in the place of their own, in training.

A list that training meets as it is is learnt by heart, and an unknown tool is then taken for
the listed one whose requests look alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from nano.tools import ToolSpec, listed_tools
from nano.values import USUAL_NAMES, Param
from nano.vocabulary import is_writable
from nano.words import Words, is_held_out

_DISGUISED_SHARE = 0.65
_KEPT = frozenset("get find check set create list send search make add run is to from".split())


def listed_tool(words: Words) -> ToolSpec:
    """Draw a tool from the list of this side; in training it is mostly disguised."""
    spec = words.rng.choice(listed_tools(words.split))
    if words.split == "train" and words.rng.random() < _DISGUISED_SHARE:
        return disguised(words, spec)
    return spec


def disguised(words: Words, spec: ToolSpec) -> ToolSpec:
    """Return the tool with other nouns, verbs, parameters and choices, where that can be done.

    A word of the name changes only if the requests hold it too, and requests in which nothing
    changes are dropped, so that what is left still names the tool in its own words.
    """
    parts = spec.name.split("_")
    told = " ".join(spec.requests).lower()
    own = [part for part in parts if part not in _KEPT and part.rstrip("s") in told]
    swaps = {part: words.noun() for part in own if words.rng.random() < 0.85}
    renamed = {param.name: _another_name(words, param) for param in spec.params}
    requests = [_swapped(text, swaps) for text in spec.requests]
    requests = [new for new, old in zip(requests, spec.requests, strict=True) if new != old]
    name = "_".join(swaps.get(part, part) for part in parts)
    params = tuple(_disguised_param(words, param, renamed[param.name]) for param in spec.params)
    is_odd = len(set(renamed.values())) < len(renamed) or not is_writable(name)
    if not requests or is_odd or is_held_out(name):
        return spec
    asked = tuple(_renamed(text, renamed) for text in requests)
    return ToolSpec(name, _swapped(spec.description, swaps), params, asked)


def _another_name(words: Words, param: Param) -> str:
    if words.rng.random() < 0.4:
        return param.name
    usual = USUAL_NAMES.get(param.kind)
    return words.rng.choice(usual) if usual and words.rng.random() < 0.6 else words.noun()


def _disguised_param(words: Words, param: Param, name: str) -> Param:
    choices = param.choices
    if choices and words.rng.random() < 0.6:
        choices = tuple(dict.fromkeys(words.noun() for _ in choices))
    return replace(param, name=name, choices=choices)


def _swapped(text: str, swaps: Mapping[str, str]) -> str:
    """Return the text with other words, but for the names in braces."""
    for old, new in swaps.items():
        pattern = rf"(?<!{{)\b{re.escape(old.rstrip('s'))}(?:s|es)?\b(?!}})"
        text = re.sub(pattern, new, text, flags=re.IGNORECASE)
    return text


def _renamed(text: str, names: Mapping[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: f"{{{names[match[1]]}}}", text)
