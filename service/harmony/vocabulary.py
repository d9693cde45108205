"""Token ids and their bytes: the o200k_harmony vocabulary, and its file for engines.

The ordinary ids 0..199997 spell text; every id above is a control token and never does.
Text is always encoded as ordinary ids, so nothing a client writes can become a control
token.
"""

from __future__ import annotations

import re
import secrets
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

from openai_harmony import HarmonyEncoding, load_harmony_encoding

from service.known_texts import KNOWN_TEXTS
from service.work import count_tokens, rest

ENDOFTEXT = 199999
RETURN = 200002
CONSTRAIN = 200003
CHANNEL = 200005
START = 200006
END = 200007
MESSAGE = 200008
CALL = 200012

STOP_TOKEN_IDS = (RETURN, CALL, ENDOFTEXT)  # the first ends a guided answer

NUM_ORDINARY = 199998
LONGEST_TOKEN_CHARS = 128  # that an ordinary id spells

# The library's time grows with the square of a run it cannot split (100,000 letters take
# 4.5 s) and it panics on a million spaces. Longer runs are cut here; only their own
# tokens could differ from an uncut encoding.
_MAX_RUN_CHARS = 1000
_RUN = re.compile(
    r"\s+"
    r"|(?:[^\w\s]|_)+"
    # Letters and whatever may continue a word: all but digits, spaces and punctuation.
    r"|[^\d\s!-/:-@\[-`{-~\u2000-\u206f\u3000-\u303f\uff00-\uff20]+"
)

PIECE_CHARS = 8192  # encoded in about a millisecond
MOST_CHARS = 2 * PIECE_CHARS

# A text is encoded in pieces, since the library keeps the interpreter while it encodes one.
# Between these characters the vocabulary's own pattern always ends one word and begins the
# next, and it never looks back: the ids of the parts are the ids of the whole.
_LETTER = r"[A-Za-z0-9\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fff\uac00-\ud7a3]"
_SAFE_CUT = re.compile(
    rf"\S(?=[ \t])|{_LETTER}(?=[\n\r!\"#$%&()*+,\-./:;<=>?@\[\\\]^_`{{|}}~\u3001\u3002\uff0c])"
)

_MARK = re.compile(r"<\|[a-z_0-9]{1,32}\|>")

FILE_NAME = "o200k_base.tiktoken"


@cache
def _encoding() -> HarmonyEncoding:
    return load_harmony_encoding("HarmonyGptOss")


def encode_text(text: str) -> list[int]:
    if (known := KNOWN_TEXTS.get()) is None:
        return encode_in_pieces(text, _encode)
    if (token_ids := known.find(text)) is None:
        token_ids = encode_in_pieces(text, _encode)
        known.keep(text, token_ids)
    else:
        count_tokens(len(token_ids))
    return token_ids


def _encode(text: str) -> list[int]:
    token_ids: list[int] = []
    for part in _short_runs(text):
        token_ids += _encoding().encode(part, disallowed_special=())
    return token_ids


def _short_runs(text: str) -> Iterator[str]:
    """Cut text where a run of one kind of character is too long to encode quickly."""
    start = 0
    if _may_have_long_run(text):
        for run in _RUN.finditer(text):
            for cut in range(run.start() + _MAX_RUN_CHARS, run.end(), _MAX_RUN_CHARS):
                yield text[start:cut]
                start = cut
    yield text[start:]


def _may_have_long_run(text: str) -> bool:
    """Quickly: words and, taken together, the spaces between them may be short enough."""
    if len(text) <= _MAX_RUN_CHARS:
        return False
    words = text.split()
    num_spaces = len(text) - sum(map(len, words))
    return num_spaces - len(words) >= _MAX_RUN_CHARS or max(map(len, words)) > _MAX_RUN_CHARS


def encode_marked(text: str) -> list[int]:
    token_ids: list[int] = []
    start = 0
    for mark in _MARK.finditer(text):
        rest()
        control = _control_ids().get(mark[0])
        if control is not None:
            token_ids += [*encode_text(text[start : mark.start()]), control]
            count_tokens(1)
            start = mark.end()
    return token_ids + encode_text(text[start:])


def decode_marked(token_ids: Iterable[int]) -> str:
    return b"".join(map(_spelt, token_ids)).decode("utf-8", "replace")


def _spelt(token_id: int) -> bytes:
    rest()
    return decode_bytes(token_id) if is_ordinary(token_id) else name_of(token_id).encode()


def name_of(token_id: int) -> str:
    return _control_names().get(token_id, "")


@cache
def _control_names() -> dict[int, str]:
    ids = range(NUM_ORDINARY, NUM_ORDINARY + len(_encoding().special_tokens_set))
    return {token_id: _encoding().decode([token_id]) for token_id in ids}


@cache
def _control_ids() -> dict[str, int]:
    return {name: token_id for token_id, name in _control_names().items()}


def is_ordinary(token_id: int) -> bool:
    return 0 <= token_id < NUM_ORDINARY


def decode_bytes(token_id: int) -> bytes:
    if not is_ordinary(token_id):
        return b""
    # The library's public decode() replaces the bytes of a split character.
    return bytes(_encoding()._inner.decode_bytes([token_id]))


class _WholeTexts(dict[int, str | None]):
    """Each id's text if it is whole characters, else None; filled as ids are met."""

    def __missing__(self, token_id: int) -> str | None:
        if not is_ordinary(token_id):
            return None
        try:
            text = decode_bytes(token_id).decode()
        except UnicodeDecodeError:
            text = None
        self[token_id] = text
        return text


# A constant, filled lazily: all 200,000 would take about 0.2 s.
WHOLE_TEXTS = _WholeTexts()


def encode_in_pieces(text: str, encode: Callable[[str], list[int]]) -> list[int]:
    """The ids of a text of any length; inside in_turns() with pauses for others."""
    token_ids: list[int] = []
    for piece in pieces(text):
        ids = encode(piece)
        count_tokens(len(ids))
        token_ids += ids
        rest()
    return token_ids


def pieces(text: str) -> Iterator[str]:
    """Cut a text where that does not change its ids.

    What has no such place within MOST_CHARS is cut all the same: only the tokens on both sides may
    then differ from those of the whole.
    """
    start = 0
    while len(text) - start > PIECE_CHARS:
        most = min(start + MOST_CHARS, len(text))
        cut = _SAFE_CUT.search(text, start + PIECE_CHARS, most)
        end = cut.end() if cut else most
        yield text[start:end]
        start = end
    if start < len(text) or not text:
        yield text[start:]


def write_vocabulary(folder: Path) -> Path:
    """Write the vocabulary's file unless it is there (about 0.5 s, 3.6 MB); return its path.

    It is the published o200k_base.tiktoken byte for byte: a line `<base64> <id>` per token.
    """
    path = folder / FILE_NAME
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".{FILE_NAME}.{secrets.token_hex(4)}"  # hosts share process ids
    draft.write_bytes(_content())
    draft.replace(path)  # at once, so that no reader sees half of it
    return path


def _content() -> bytes:
    return b"".join(b"%s %d\n" % (b64encode(decode_bytes(i)), i) for i in range(NUM_ORDINARY))
