"""Reading message headers, well formed or not, and where a message with such a header belongs.

A header is the part between a message's start and its text. Control tokens cut it
into parts; each part has words that belong there, and what is left over may be junk or
may be the text of a message whose `<|message|>` the model forgot. docs/harmony.md gives the
reasons of each line of the choice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from service.conversation import FUNCTIONS, DeltaKind, TextPiece

# The tools gpt-oss was trained with, as headers name them.
RECIPIENTS = {"browser": ("browser.search", "browser.open", "browser.find"), "python": ("python",)}
ALL_RECIPIENTS = frozenset(name for names in RECIPIENTS.values() for name in names)


# Recipients that are not tools: the message is an ordinary one.
_NOT_TOOLS = frozenset({"assistant", "user", "all"})
_BY_CHANNEL = {
    "analysis": DeltaKind.REASONING,
    "commentary": DeltaKind.CONTENT,
    "final": DeltaKind.CONTENT,
}


def recipient_of(name: str) -> str:
    """The Harmony recipient of a call of the tool with this qualified name."""
    return name if "." in name else f"{FUNCTIONS}.{name}"


def recipients_of(tools: Iterable[str]) -> frozenset[str]:
    """All Harmony recipients of these built-in tools."""
    return frozenset(name for tool in tools for name in RECIPIENTS[tool])


class HeaderPart(Enum):
    """A part of a header, by the control token before it."""

    GIVEN = 0  # the author is known: by the prompt, or because <|start|> was left out
    AUTHOR = 1  # after <|start|>
    CHANNEL = 2  # after <|channel|>
    TYPE = 3  # after <|constrain|>


# Models leave out the space between two words (`assistantcommentary`) and add stops to a channel
# (`commentary?`). Lengths are bounded: each token of a header has the whole part read again.
_TO = (
    r"to=\s*(?P<quote>[\"'])?(?P<to>(?:functions\.\s+(?!(?:json|code)\b)(?=\w))?[\w.\-]{0,160})"
    r"(?(quote)(?P=quote)?)"
    r"|(?P<bare>functions\.[\w.\-]{1,160})"
)
_SELF = r"assistant(?:(?![a-z])|(?=assistant|analysis|commentary|final|to=))"
_CHANNEL = (
    r"(?P<channel>(?i:analysis|commentary|final))"
    r"(?:(?![a-z])|(?=to=|json|code|assistant))[?!.,:;*]*"
)
# A header whose control tokens were left out: no answer begins with such a word. Not the analysis
# channel: all that follows would be thoughts, the answer too.
_BARE = r"assistant(?P<channel>commentary|final)"
_TYPE = r"(?P<type>json|code)(?=\s*(?:$|[{\[\"]|to?$|to=|functions\.))"
_WORD = {
    HeaderPart.GIVEN: re.compile(rf"\s*(?:{_BARE}|{_SELF}|{_TO})"),
    HeaderPart.AUTHOR: re.compile(rf"\s*(?:{_BARE}|{_SELF}|{_TO})"),
    HeaderPart.CHANNEL: re.compile(rf"\s*(?:{_CHANNEL}|{_TO}|{_SELF})"),
    HeaderPart.TYPE: re.compile(rf"\s*(?:{_TYPE}|{_TO}|{_CHANNEL})"),
}
_TYPE_WORD = re.compile(rf"\s*{_TYPE}")
_FOREIGN = re.compile(
    r"\s*(?:user|system|developer|tool|python|browser(?:\.\w+)?|functions\.[\w.\-]+)(?=\s|$)"
)
_ONLY_CHANNEL = re.compile(_CHANNEL)
# The documented forms; whatever else is understood counts as a repair.
_FORMAL = {
    HeaderPart.GIVEN: re.compile(r"(?: to=\S+)?"),
    HeaderPart.AUTHOR: re.compile(r"assistant(?: to=\S+)?"),
    HeaderPart.CHANNEL: re.compile(r"(?:analysis|commentary|final)(?: to=\S+)?(?: \w+)? ?"),
    HeaderPart.TYPE: re.compile(r"\w+"),
}
_JSON = re.compile(r"[{\[\"]")  # in no header word, but where arguments begin
_MAX_WORD_CHARS = 64
_MAX_WORDS = 8  # of a part; no header has as many, but a model may repeat itself

_AUTHORS = ("assistant", "user", "system", "developer", "tool", "functions.")
_CHANNELS = ("analysis", "commentary", "final")
_AFTER_CHANNEL = ("to=", "json", "code", "functions.")


@dataclass(frozen=True, slots=True)
class Reading:
    """What a header says, as far as it has been read."""

    channel: str | None = None
    recipients: tuple[str, ...] = ()
    is_foreign: bool = False  # another author's message: the model plays the user or a tool
    num_chars: int = 0  # how much of the part these words take
    rest: str = ""  # what follows them

    @property
    def is_silent(self) -> bool:
        """Whether the header does not say where the message belongs."""
        return not (self.channel or self.recipients or self.is_foreign)


def read_part(text: str, part: HeaderPart) -> Reading:
    foreign = _FOREIGN.match(text) if part is HeaderPart.AUTHOR else None
    end = foreign.end() if foreign else 0
    channel, recipients, is_named = None, [], False
    for _ in range(_MAX_WORDS):
        match = _WORD[part].match(text, end) or (is_named and _TYPE_WORD.match(text, end))
        if not match:
            break
        end = match.end()
        words = match.groupdict()
        channel = words.get("channel") or channel
        recipients += ["".join(to.split()) for to in (words.get("to"), words.get("bare")) if to]
        is_named = is_named or bool(channel or recipients)
    rest = text[end:].lstrip()
    if foreign and _is_prose(rest):  # "system is down": no author, but words
        return Reading(rest=text.lstrip(), num_chars=len(text) - len(text.lstrip()))
    channel = channel and channel.lower()
    return Reading(channel, tuple(recipients), bool(foreign), len(text) - len(rest), rest)


def _is_prose(rest: str) -> bool:
    return len(rest) > _MAX_WORD_CHARS or len(rest.split()) > 1


class Header:
    """A message header while its tokens arrive."""

    def __init__(self, part: HeaderPart, inherited: Reading | None = None) -> None:
        self.is_started = part is HeaderPart.AUTHOR
        self.has_channel = False
        self._is_formal = True
        self._closed: list[Reading] = []
        self._inherited = inherited
        self._open(part)

    def _open(self, part: HeaderPart) -> None:
        self._part = part
        self._pieces: list[TextPiece] = []
        self._text = ""

    def open_part(self, part: HeaderPart) -> None:
        is_second = self.has_channel and part is HeaderPart.CHANNEL
        self._is_formal = self.is_formal and not is_second
        self._closed.append(self._reading())
        self.has_channel = self.has_channel or part is HeaderPart.CHANNEL
        self._open(part)

    @property
    def is_formal(self) -> bool:
        """Whether all parts so far are as documented."""
        return self._is_formal and bool(_FORMAL[self._part].fullmatch(self._text))

    def add(self, piece: TextPiece) -> None:
        # Endless blank lines between messages must not make every reading longer.
        is_blank = not self._text or self._text[-1].isspace()
        if is_blank and piece[0].isspace() and not self._reading().rest:
            return
        self._pieces.append(piece)
        self._text += piece[0]

    def _reading(self) -> Reading:
        return read_part(self._text, self._part)

    @property
    def is_prose(self) -> bool:
        """Whether the present part has become text: several words that are no header words."""
        return _is_prose(self._reading().rest)

    def text(self, *, continues: bool) -> list[TextPiece]:
        """Return the message text in the current part.

        One unknown word is a misspelt header word if the header continues after it and such a word
        had its place there; everything else the header cannot explain is text.
        """
        reading = self._reading()
        if not reading.rest or (continues and self._is_junk(reading)):
            return []
        return list(_after(self._pieces, 0 if reading.is_foreign else reading.num_chars))

    def _is_junk(self, reading: Reading) -> bool:
        has_place = self._part is not HeaderPart.GIVEN or bool(reading.recipients)
        is_word = not _is_prose(reading.rest) and not _JSON.search(reading.rest)
        return (has_place and is_word) or self._is_channel_name(reading)

    def _is_channel_name(self, reading: Reading) -> bool:
        is_author_part = self._part in (HeaderPart.GIVEN, HeaderPart.AUTHOR)
        return is_author_part and bool(_ONLY_CHANNEL.fullmatch(reading.rest))

    @property
    def is_cut_word(self) -> bool:
        """Whether the output ended inside a header word."""
        rest = self._reading().rest
        words: tuple[str, ...] = _AFTER_CHANNEL
        if self._part is HeaderPart.AUTHOR:
            words = _AUTHORS
        elif self._part is HeaderPart.GIVEN:
            words = ("to=",)
        elif self.reading().channel is None:
            words = (*_CHANNELS, *_AFTER_CHANNEL)
        return any(word.startswith(rest) for word in words)

    def reading(self) -> Reading:
        """All parts read together; the last channel named is the one meant."""
        last = self._reading()
        readings = [*self._closed, last]
        named = [r.channel for r in readings if r.channel]
        if not named and self._is_channel_name(last):
            named = [last.rest.rstrip("?!.,:;*").lower()]
        whole = Reading(
            channel=named[-1] if named else None,
            recipients=tuple(to for r in readings for to in r.recipients),
            is_foreign=any(r.is_foreign for r in readings),
            rest=last.rest,
        )
        is_bare = whole.is_silent and not self.has_channel
        return self._inherited if is_bare and self._inherited else whole


def _after(pieces: list[TextPiece], num_chars: int) -> Iterator[TextPiece]:
    for text, positions in pieces:
        if len(text) > num_chars:
            yield text[num_chars:], positions
        num_chars = max(0, num_chars - len(text))


@dataclass(frozen=True, slots=True)
class Route:
    """Where a message's text goes; kind None: only the message's end tells."""

    kind: DeltaKind | None
    name: str = ""  # of the function or built-in tool, where kind is a call's
    is_offered: bool = True  # a call of an unknown tool keeps its name


def route(
    reading: Reading,
    tool_names: frozenset[str],
    hosted: frozenset[str],
    *,
    returns_others: bool,
    has_channel: bool,
    has_spoken: bool,
) -> Route:
    """Decide where a message goes, by the best evidence.

    A tool, the final channel, an addressee, the channel named, and last what the model would write
    at this point. `hosted`: the recipients of tools that this server runs; `returns_others`: the
    client gets all other calls.
    """
    called = _called(reading, tool_names, hosted, returns_others=returns_others)
    if called and not reading.is_foreign:
        return called
    if reading.channel == "final":
        return Route(DeltaKind.CONTENT)
    if reading.is_foreign or not _NOT_TOOLS.issuperset(reading.recipients):
        return Route(DeltaKind.REASONING)
    if reading.channel:
        return Route(_BY_CHANNEL[reading.channel])
    return Route(None if has_channel and not has_spoken else DeltaKind.CONTENT)


def _called(
    reading: Reading, tool_names: frozenset[str], hosted: frozenset[str], *, returns_others: bool
) -> Route | None:
    """The call that the message is; a function may have a built-in tool's name."""
    for to in reading.recipients:
        if to in hosted:
            return Route(DeltaKind.HOSTED_CALL, to)
    offered = (_offered(to, tool_names) for to in reading.recipients)
    name = next((name for name in offered if name), None)
    if name is not None:
        return Route(DeltaKind.ARGUMENTS, name)
    if not returns_others or reading.channel == "final":
        return None
    unknown = (_unknown(to) for to in reading.recipients if to not in _NOT_TOOLS)
    name = next((name for name in unknown if name), None)
    return Route(DeltaKind.ARGUMENTS, name, is_offered=name in ALL_RECIPIENTS) if name else None


def _unknown(recipient: str) -> str:
    """The name by which a client can say that it has no such tool."""
    name = recipient.removeprefix("functions.").strip(".-")
    return "" if name == "functions" else name


def _offered(recipient: str, tool_names: frozenset[str]) -> str | None:
    name = recipient.removeprefix("functions.")
    for spelt in (name, name.rstrip(".-")):
        if spelt in tool_names:
            return spelt
    without_namespace = [n for n in tool_names if n.endswith(f".{name}")]
    return without_namespace[0] if len(without_namespace) == 1 else None
