"""A client's structural tag, xgrammar's format, → a grammar of the final message's text.

Formats that name tokens are refused: a client may only speak of text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from engines.grammar.tree import (
    Alternation,
    Concatenation,
    Gbnf,
    Grammar,
    Literal,
    Regex,
    Repeat,
    Text,
    Until,
    optional,
)
from service.errors import RequestError
from service.guide.schema import schema_grammar
from service.work import Budget

_MAX_DEPTH: Final = 16
_MAX_FORMATS: Final = 1000

Format = Mapping[str, Any]


def format_grammar(format: Any, field: str, budget: Budget | None = None) -> Grammar:
    """The grammar of a format; raises RequestError naming the place that cannot be enforced.

    Raises OverBudget when reading its schemas takes more steps than are left.
    """
    return _Reader(budget).read(format, field)


class _Reader:
    """Reads one client's tag."""

    def __init__(self, budget: Budget | None) -> None:
        self._budget = budget
        self._num_formats = 0

    def read(self, format: Any, field: str) -> Grammar:
        self._num_formats += 1
        if self._num_formats > _MAX_FORMATS or field.count(".") > _MAX_DEPTH:
            _refuse(field, f"has more than {_MAX_FORMATS} formats, or more than {_MAX_DEPTH} deep")
        kind = format.get("type") if isinstance(format, dict) else None
        if not isinstance(kind, str):
            _refuse(field, "must be an object with a type")
        read = self._readers().get(kind)
        if read is None:
            _refuse(field, f"has the type {kind!r}; use one of {', '.join(self._readers())}")
        return read(format, field)

    def _readers(self) -> dict[str, Callable[[Format, str], Grammar]]:
        return {
            "const_string": lambda f, at: Literal(_text(f, "value", at)),
            "any_text": self._any_text,
            "json_schema": self._json_schema,
            "regex": lambda f, at: Regex(_text(f, "pattern", at), f"{at}.pattern"),
            "grammar": lambda f, at: Gbnf(_text(f, "grammar", at), f"{at}.grammar"),
            "sequence": lambda f, at: self._sequence(f, at),
            "or": lambda f, at: Alternation(tuple(self._all(f, "elements", at))),
            "optional": lambda f, at: optional(self._content(f, at)),
            "star": lambda f, at: Repeat(self._content(f, at)),
            "plus": lambda f, at: Repeat(self._content(f, at), 1),
            "tag": self._tag,
            "triggered_tags": self._triggered,
            "tags_with_separator": self._separated,
        }

    def _content(self, format: Format, field: str) -> Grammar:
        return self.read(format.get("content"), f"{field}.content")

    def _all(self, format: Format, key: str, field: str) -> list[Grammar]:
        return [self.read(part, f"{field}.{key}[{i}]") for i, part in _parts(format, key, field)]

    def _any_text(self, format: Format, field: str) -> Grammar:
        if format.get("excludes"):
            _refuse(f"{field}.excludes", "is not supported; leave it out")
        return Text()

    def _json_schema(self, format: Format, field: str) -> Grammar:
        place = f"{field}.json_schema"
        return schema_grammar(format.get("json_schema"), place, self._budget)

    def _sequence(self, format: Format, field: str) -> Grammar:
        """A sequence; text before another part ends where a constant begins."""
        parts: list[Grammar] = []
        for i, part in enumerate(self._all(format, "elements", field)):
            if parts and isinstance(parts[-1], Text):
                if not isinstance(part, Literal) or not part.text:
                    _refuse(f"{field}.elements[{i}]", "must be a const_string behind any_text")
                parts[-1] = Until(part.text)
            else:
                parts.append(part)
        return Concatenation(tuple(parts))

    def _tag(self, format: Format, field: str, trigger: str = "") -> Grammar:
        """A beginning, content and an end; of the beginning, the part after the trigger."""
        begin = _text(format, "begin", field)
        if not begin.startswith(trigger):
            _refuse(f"{field}.begin", f"must begin with the trigger {trigger!r}")
        ends = format.get("end", "")
        ends = [ends] if isinstance(ends, str) else ends
        if not isinstance(ends, list) or not all(isinstance(end, str) for end in ends) or not ends:
            _refuse(f"{field}.end", "must be a text, or texts; a format may not name tokens")
        content = self._content(format, field)
        until = [
            Until(end)
            if isinstance(content, Text) and end
            else Concatenation((content, Literal(end)))
            for end in ends
        ]
        return Concatenation((Literal(begin[len(trigger) :]), Alternation(tuple(until))))

    def _triggered(self, format: Format, field: str) -> Grammar:
        """Text in which each trigger begins a tag."""
        triggers = [self._trigger(part, field) for _, part in _parts(format, "triggers", field)]
        tags: list[Grammar] = []
        behind: list[Grammar] = []
        for i, part in _parts(format, "tags", field):
            place = f"{field}.tags[{i}]"
            begin = _text(part if isinstance(part, dict) else {}, "begin", place)
            known = [trigger for trigger in triggers if begin.startswith(trigger)]
            if not known:
                _refuse(f"{place}.begin", "must begin with one of the triggers")
            tags.append(self._tag(part, place))
            # The text up to a trigger has the trigger itself: only the rest of the tag follows.
            behind.append(Concatenation((Until(known[0]), self._tag(part, place, known[0]))))
        first = [Alternation(tuple(tags))] if format.get("at_least_one") else []
        if format.get("stop_after_first"):
            only = Concatenation((optional(Alternation(tuple(behind))),))
            return first[0] if first else Alternation((only, Text()))
        return Concatenation((*first, Repeat(Alternation(tuple(behind))), Text()))

    def _trigger(self, trigger: Any, field: str) -> str:
        if not isinstance(trigger, str) or not trigger:
            _refuse(f"{field}.triggers", "must be texts; a format may not name tokens")
        return trigger

    def _separated(self, format: Format, field: str) -> Grammar:
        """Tags with a text between each two."""
        tags = [
            self._tag(part if isinstance(part, dict) else {}, f"{field}.tags[{i}]")
            for i, part in _parts(format, "tags", field)
        ]
        one = Alternation(tuple(tags))
        more = Repeat(Concatenation((Literal(_text(format, "separator", field)), one)))
        whole = one if format.get("stop_after_first") else Concatenation((one, more))
        return whole if format.get("at_least_one") else optional(whole)


def _parts(format: Format, key: str, field: str) -> list[tuple[int, Any]]:
    parts = format.get(key)
    if not isinstance(parts, list) or not parts:
        _refuse(f"{field}.{key}", "must be a list that is not empty")
    return list(enumerate(parts))


def _text(format: Format, key: str, field: str) -> str:
    text = format.get(key)
    if not isinstance(text, str):
        _refuse(f"{field}.{key}", "must be a text; a format may not name tokens")
    return text


def _refuse(field: str, reason: str) -> NoReturn:
    raise RequestError(f"{field} {reason}.", param=field, code="invalid_grammar")
