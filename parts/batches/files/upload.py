"""An uploaded file, from the request to the disk: a piece at a time, whatever its size.

The form is parsed as it comes. A field that is no file is small; the file is written as it comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import BinaryIO, Final

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from parts.batches.files.folder import FilesFolder, append
from service.errors import RequestError

MAX_BYTES: Final = 200_000_000  # of a file
_MAX_FORM_BYTES: Final = 65_536  # of all that is beside it
_MAX_FIELD_BYTES: Final = 4_096
_MAX_FIELDS: Final = 16
_WRITTEN_BYTES: Final = 1 << 20  # collected before they are written


@dataclass(slots=True)
class FileUpload:
    """A form whose file is on the disk, under a name of its own."""

    content: str
    fields: dict[str, str] = field(default_factory=dict)
    filename: str | None = None  # None: there was no file
    num_bytes: int = 0
    num_lines: int = 0


async def receive_upload(request: Request, folder: FilesFolder, content: str) -> FileUpload:
    """Read the form of a request, and write its file to `content`, which the caller removes.

    Raises RequestError, OSError and StorageFull.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > MAX_BYTES + _MAX_FORM_BYTES:
        raise _too_large()
    upload = FileUpload(content)
    file = await asyncio.to_thread(folder.create, content)
    try:
        form = _Form(_boundary(request), upload)
        await _read(request, form, file)
        await asyncio.to_thread(folder.complete, file)
    except ClientDisconnect:
        raise RequestError("The upload was not complete.", code="incomplete_upload") from None
    finally:
        file.close()
    return upload


async def _read(request: Request, form: _Form, file: BinaryIO) -> None:
    num_read = 0
    async for chunk in request.stream():
        num_read += len(chunk)
        form.feed(chunk)
        if form.upload.num_bytes > MAX_BYTES or num_read > MAX_BYTES + _MAX_FORM_BYTES:
            raise _too_large()
        if form.num_waiting >= _WRITTEN_BYTES:
            await asyncio.to_thread(append, file, form.take())
    form.end()
    await asyncio.to_thread(append, file, form.take())


def _boundary(request: Request) -> bytes:
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not 0 < len(boundary) <= 256:
        raise RequestError(
            "The body must be a form (multipart/form-data) with the fields file and purpose.",
            code="invalid_form",
            status=415,
        )
    return boundary


def _too_large() -> RequestError:
    return RequestError(
        f"The file is larger than {MAX_BYTES} bytes; split it into several.",
        param="file",
        code="file_too_large",
        status=413,
    )


class _Form:
    """Takes a form apart; the caller writes the file's bytes."""

    def __init__(self, boundary: bytes, upload: FileUpload) -> None:
        self.upload = upload
        self.num_waiting = 0  # bytes of the file that are not written
        self._waiting: list[bytes] = []
        self._header = (bytearray(), bytearray())  # name and value
        self._name: str | None = None
        self._is_file = False
        self._value = bytearray()
        self._num_fields = 0
        self._is_whole = False
        names = ("part_begin", "part_data", "part_end", "header_field", "header_value", "end")
        callbacks: dict[str, Callable[..., None]] = {
            f"on_{name}": getattr(self, f"_on_{name}") for name in names
        }
        callbacks |= {"on_header_end": self._on_header_end}
        self._parser = MultipartParser(boundary, callbacks)  # type: ignore[arg-type]

    def feed(self, data: bytes) -> None:
        """Parse more; raises RequestError for what is no form."""
        try:
            self._parser.write(data)
        except MultipartParseError as error:
            raise _invalid(f"The form cannot be read: {error}.") from None

    def end(self) -> None:
        """Check that the form is whole."""
        if not self._is_whole:
            raise _invalid("The form ends too early: its last boundary is missing.")

    def take(self) -> list[bytes]:
        """The file's bytes since the last time."""
        waiting, self._waiting, self.num_waiting = self._waiting, [], 0
        return waiting

    def _on_part_begin(self) -> None:
        self._name, self._is_file, self._value = None, False, bytearray()
        self._num_fields += 1
        if self._num_fields > _MAX_FIELDS:
            raise _invalid(f"The form has more than {_MAX_FIELDS} fields.")

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._collect(self._header[0], data[start:end])

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._collect(self._header[1], data[start:end])

    def _on_header_end(self) -> None:
        name, value = (bytes(each) for each in self._header)
        self._header = (bytearray(), bytearray())
        if name.lower() != b"content-disposition":
            return
        _, options = parse_options_header(value)
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        if self._name == "file":
            if self.upload.filename is not None:
                raise _invalid("The form has two files; send one.")
            self._is_file = True
            given = options.get(b"filename", b"").decode("utf-8", "replace")
            self.upload.filename = _clean(given)

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        piece = data[start:end]
        if not self._is_file:
            self._collect(self._value, piece)
            return
        self._waiting.append(piece)
        self.num_waiting += len(piece)
        self.upload.num_bytes += len(piece)
        self.upload.num_lines += piece.count(b"\n")

    def _on_part_end(self) -> None:
        if self._name and not self._is_file:
            self.upload.fields[self._name] = self._value.decode("utf-8", "replace")

    def _on_end(self) -> None:
        self._is_whole = True

    def _collect(self, into: bytearray, data: bytes) -> None:
        into += data
        if len(into) > _MAX_FIELD_BYTES:
            raise _invalid(f"A field of the form is longer than {_MAX_FIELD_BYTES} bytes.")


def _clean(filename: str) -> str:
    """A name without folders and without what a header or a log line must not have."""
    last = filename.replace("\\", "/").rpartition("/")[2]
    return "".join(c for c in last if c.isprintable())[:255] or "upload.jsonl"


def _invalid(message: str) -> RequestError:
    return RequestError(message, code="invalid_form")
