"""What sources answer, read with a bound: lists and indexes whole, files into their pieces.

The hub's client and NGC's (httpx2) and mirrors' (obstore) all give the bytes of an answer in
chunks; what is done with them is here, once.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Protocol, TypeVar

import msgspec

from profiles.download.pieces import FilePiece, NoRanges
from profiles.download.progress import Progress
from profiles.errors import DownloadError, WrongBytes

MAX_DOCUMENT_BYTES: Final = 8 << 20  # the hub's list of a thousand files has 0.4 MB
DOCUMENT_S: Final = 15.0  # for one whole list or index, however it trickles
SILENCE_S: Final = 8.0  # within one: it is asked for twice
PLAIN: Final = {"Accept-Encoding": "identity"}  # what is compressed may unfold to a thousandfold
_MAX_COLONS: Final = 250_000  # the parser makes an object for each
_MAX_WAIT_S: Final = 60.0
Document = TypeVar("Document")


class HttpAnswer(Protocol):
    """The answer of httpx2."""

    @property
    def status_code(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    def iter_raw(self, chunk_size: int | None = None) -> Iterator[bytes]: ...


def document(chunks: Iterable[bytes], title: str, max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
    """Read a whole list or index; raises DownloadError for one that is too large or too slow."""
    content, until = bytearray(), time.monotonic() + DOCUMENT_S
    for chunk in chunks:
        content += chunk
        if len(content) > max_bytes:
            raise DownloadError(f"{title} has more than {max_bytes:,} bytes")
        if time.monotonic() > until:
            raise DownloadError(f"{title} did not come whole within {DOCUMENT_S:.0f} s")
    return bytes(content)


def decoded(content: bytes, kind: type[Document], title: str) -> Document:
    """Read JSON of a known kind; raises DownloadError that names `title` for any other."""
    try:
        if content.count(b":") > _MAX_COLONS:
            raise ValueError(f"it has more than {_MAX_COLONS:,} entries")
        return msgspec.json.decode(content, type=kind)
    except RecursionError:
        raise DownloadError(f"{title} is nested too deep") from None
    except (ValueError, msgspec.MsgspecError) as error:
        raise DownloadError(f"{title} cannot be read: {error}") from None


def raw_document(answer: HttpAnswer, title: str) -> bytes:
    """Read an answer that is a list; raises DownloadError."""
    _check_plain(answer, title)
    return document(answer.iter_raw(), title)


def asked_range(piece: FilePiece) -> dict[str, str]:
    if piece.is_whole_file:
        return PLAIN
    return {**PLAIN, "Range": f"bytes={piece.next}-{piece.end - 1}"}


def write_answer(
    answer: HttpAnswer, title: str, piece: FilePiece, progress: Progress, chunk_bytes: int
) -> None:
    """Write the answer to `asked_range` to the piece.

    Raises NoRanges where the source sends whole files only, and WrongBytes where it has another
    file than it lists.
    """
    _check_plain(answer, title)
    if piece.is_whole_file:
        total = answer.headers.get("Content-Length")
    elif answer.status_code == 206:
        span, _, total = answer.headers.get("Content-Range", "").partition("/")
        if not span.startswith(f"bytes {piece.next}-"):
            raise WrongBytes(f"{title}: the source sent another range than was asked for")
    else:
        raise NoRanges
    check_total(_number(total), title, piece)
    for chunk in answer.iter_raw(chunk_bytes):
        write_chunk(chunk, title, piece, progress)


def check_total(size: int | None, title: str, piece: FilePiece) -> None:
    """Raise WrongBytes unless the source's file has the size that it lists (None: it is silent)."""
    if size is not None and size != piece.file_bytes:
        raise WrongBytes(
            f"{title}: the source lists {piece.file_bytes:,} bytes, and sends a file of {size:,}"
        )


def write_chunk(chunk: bytes, title: str, piece: FilePiece, progress: Progress) -> None:
    """Write to the piece what came next; raises WrongBytes for more than its file has."""
    if len(chunk) > piece.left:
        raise WrongBytes(f"{title}: the source sends more bytes than it lists")
    piece.write(chunk)
    progress.add(len(chunk))


def wait_of(headers: Mapping[str, str]) -> float:
    """For how long a busy source asks not to be asked, within reason."""
    return min(_number(headers.get("Retry-After")) or 0.0, _MAX_WAIT_S)


def _number(text: str | None) -> int | None:
    is_number = text is not None and re.fullmatch(r"[0-9]{1,20}", text)
    return int(text) if is_number and text is not None else None


def _check_plain(answer: HttpAnswer, title: str) -> None:
    coding = answer.headers.get("Content-Encoding", "identity")
    if coding.lower() != "identity":
        raise DownloadError(f"{title} came compressed ({coding[:20]!a}), which was not asked for")
