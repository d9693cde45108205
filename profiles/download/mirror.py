"""Files of a mirror's folder: an S3 or Google bucket, or a web server, by obstore.

Credentials and endpoints are read from the environment, under their usual names:
AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, AWS_REGION, GOOGLE_APPLICATION_CREDENTIALS, HTTPS_PROXY.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from obstore.exceptions import (
    BaseError,
    NotFoundError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import GCSStore, HTTPStore, S3Store

from profiles.checkpoints.checkpoint import INDEX, SINGLE
from profiles.checkpoints.gguf import files_of
from profiles.download.pieces import NoRanges, Piece
from profiles.download.progress import Progress
from profiles.download.source import FileToFetch, Listing, RemoteFile, Source
from profiles.errors import DownloadError, DownloadInterrupted

if TYPE_CHECKING:  # the library has these for type checkers only
    from obstore.store import ClientConfig, RetryConfig

_CHUNK_BYTES = 1 << 20
_SMALL_FILES = (
    *("config.json", "generation_config.json", "chat_template.jinja"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
)
# One request may bring a whole shard: it may take longer than the library's 30 s; silence may not.
_PATIENT: ClientConfig = {"timeout": "12h", "read_timeout": "30s"}
_RETRIES: RetryConfig = {"max_retries": 2, "retry_timeout": timedelta(minutes=1)}


class Mirror:
    """One folder of a mirror."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._store = _store(source)

    def fetch(self, file: FileToFetch, piece: Piece, progress: Progress) -> None:
        """Download the rest of the piece; raises DownloadError or NoRanges."""
        with self._talking(file.name):
            options = {} if piece.is_whole_file else {"range": (piece.next, piece.end)}
            try:
                answer = self._store.get(file.name, options=options)  # type: ignore[arg-type]
            except NotSupportedError:
                raise NoRanges from None
            for chunk in answer.stream(min_chunk_size=_CHUNK_BYTES):
                piece.write(chunk)
                progress.add(len(chunk))

    def listing(self) -> Listing:
        """The folder's files; of a web server, which has no list, those that a checkpoint has."""
        if isinstance(self._store, HTTPStore):
            names = self._usual_names()
            return Listing(tuple(f for name in names if (f := self._looked_up(name))), None)
        with self._talking("its list of files"):
            listed = [each for page in self._store.list() for each in page]
        return Listing(tuple(RemoteFile(each["path"], each["size"]) for each in listed), None)

    def _usual_names(self) -> list[str]:
        """What a checkpoint's folder may hold; its shards are in its index."""
        if self._source.file is not None:
            return files_of(self._source.file)
        shards = [SINGLE]
        if self._looked_up(INDEX):
            with self._talking(INDEX):
                content = json.loads(bytes(self._store.get(INDEX).bytes()))
            shards = [INDEX, *sorted(set(content["weight_map"].values()))]
        return [*_SMALL_FILES, *shards]

    def _looked_up(self, name: str) -> RemoteFile | None:
        """A file's size, or None where there is no such file."""
        with self._talking(name):
            try:
                return RemoteFile(name, self._store.head(name)["size"])
            except (NotFoundError, FileNotFoundError):
                return None

    @contextmanager
    def _talking(self, name: str) -> Iterator[None]:
        """Translate transfer errors into messages."""
        source = self._source
        try:
            yield
        except (NotFoundError, FileNotFoundError):
            raise DownloadError(f"{source} has no file {name}") from None
        except (PermissionDeniedError, UnauthenticatedError, PermissionError):
            raise DownloadError(f"{source} refused {name}; {_CREDENTIALS[source.scheme]}") from None
        except (BaseError, TimeoutError, ConnectionError, KeyError, ValueError) as error:
            raise DownloadInterrupted(f"{name} from {source.location}: {_cause(error)}") from None


_DETAIL = re.compile(r'(?:message|error): "([^"]+)"')


def _cause(error: Exception) -> str:
    """What went wrong, out of obstore's 'Error performing GET ... - WHAT' and its structures."""
    told, _, debug = " ".join(str(error).split()).partition("Debug source:")
    words = told.rpartition(" - ")[2].strip().rstrip(":") or type(error).__name__
    detail = _DETAIL.search(debug)
    return (words if detail is None else f"{words}: {detail[1]}")[:300]


_CREDENTIALS = {
    "s3": "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL",
    "gs": "check GOOGLE_APPLICATION_CREDENTIALS",
    "https": "the mirror must serve the files without a login",
    "http": "the mirror must serve the files without a login",
}


def _store(source: Source) -> S3Store | GCSStore | HTTPStore:
    url = source.place
    if source.scheme == "s3":  # plain HTTP only where AWS_ENDPOINT_URL says so
        options: ClientConfig = {**_PATIENT, "allow_http": True}
        return S3Store.from_url(url, client_options=options, retry_config=_RETRIES)
    if source.scheme == "gs":
        return GCSStore.from_url(url, client_options=_PATIENT, retry_config=_RETRIES)
    options = {**_PATIENT, "allow_http": source.scheme == "http"}
    return HTTPStore.from_url(url, client_options=options, retry_config=_RETRIES)
