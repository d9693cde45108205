"""Files of a mirror's folder: an S3 or Google bucket, or a web server, by obstore.

Credentials and endpoints are read from the environment, under their usual names:
AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, AWS_REGION, GOOGLE_APPLICATION_CREDENTIALS, HTTPS_PROXY.
"""

from __future__ import annotations

import asyncio
import re
import resource
import sys
import time
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from obstore.exceptions import (
    BaseError,
    NotFoundError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import GCSStore, HTTPStore, S3Store

from profiles.checkpoints.checkpoint import SINGLE
from profiles.checkpoints.gguf import files_of
from profiles.checkpoints.shard_index import INDEX, MAX_INDEX_BYTES, parse_index
from profiles.download.answers import DOCUMENT_S, SILENCE_S, check_total, document, write_chunk
from profiles.download.pieces import FilePiece, NoRanges
from profiles.download.progress import Progress, amount
from profiles.download.source import MAX_FILES, FileToFetch, ListedFile, Listing, Source, listing
from profiles.errors import DownloadError, DownloadInterrupted

if TYPE_CHECKING:  # the library has these for type checkers only
    from obstore.store import ClientConfig, RetryConfig

_CHUNK_BYTES = 1 << 20
_LOOK_EVERY_S = 0.02
_MAX_PAGE_BYTES = 100_000_000  # of memory; a page has a thousand files, which take 1 MB
_SMALL_FILES = (
    *("config.json", "generation_config.json", "chat_template.jinja"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
)
# One request may bring a whole shard: it may take longer than the library's 30 s; silence may not.
_PATIENT: ClientConfig = {"timeout": "12h", "read_timeout": "30s"}
_RETRIES: RetryConfig = {"max_retries": 2, "retry_timeout": timedelta(minutes=1)}
# Lists and small answers; a whole one is given DOCUMENT_S here, which this does not come before.
_BRISK: ClientConfig = {"timeout": f"{2 * DOCUMENT_S:.0f}s", "read_timeout": f"{SILENCE_S:.0f}s"}
_AT_ONCE: RetryConfig = {"max_retries": 1, "retry_timeout": timedelta(seconds=3)}  # stale sockets


class Mirror:
    """One folder of a mirror."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._store = _store(source, _PATIENT, _RETRIES)
        self._lists = _store(source, _BRISK, _AT_ONCE)

    def fetch(self, file: FileToFetch, piece: FilePiece, progress: Progress) -> None:
        with self._talking(file.name):
            options = {} if piece.is_whole_file else {"range": (piece.next, piece.end)}
            try:
                answer = self._store.get(file.name, options=options)  # type: ignore[arg-type]
            except NotSupportedError:
                raise NoRanges from None
            title = f"{file.name} from {self._source}"
            check_total(answer.meta["size"], title, piece)
            for chunk in answer.stream(min_chunk_size=_CHUNK_BYTES):
                write_chunk(bytes(chunk), title, piece, progress)

    def listing(self) -> Listing:
        """The folder's files; of a web server, which has no list, those that a checkpoint has."""
        if isinstance(self._lists, HTTPStore):
            return listing(self._source, list(self._looked_up(self._usual_names())))
        with self._talking("its list of files"):
            entries = asyncio.run(
                _bounded(_listed(self._lists), f"{self._source}: the list of files")
            )
        return listing(self._source, entries)

    def _usual_names(self) -> list[str]:
        """What a checkpoint's folder may hold; its shards are in its index."""
        if self._source.file is not None:
            return files_of(self._source.file)
        title = f"{INDEX} of {self._source}"
        with self._talking(INDEX):
            try:
                answer = self._lists.get(INDEX)
            except (NotFoundError, FileNotFoundError):
                return [*_SMALL_FILES, SINGLE]
            content = document(map(bytes, answer.stream(min_chunk_size=1)), title, MAX_INDEX_BYTES)
        return [*_SMALL_FILES, INDEX, *sorted(parse_index(content, title))]

    def _looked_up(self, names: Iterable[str]) -> Iterator[ListedFile]:
        """The size of each file that is there."""
        for name in names:
            with self._talking(name):
                try:
                    yield ListedFile(name, self._lists.head(name)["size"])
                except (NotFoundError, FileNotFoundError):
                    continue

    @contextmanager
    def _talking(self, name: str) -> Iterator[None]:
        source = self._source
        try:
            yield
        except (NotFoundError, FileNotFoundError):
            raise DownloadError(f"{source} has no file {name}") from None
        except (PermissionDeniedError, UnauthenticatedError, PermissionError):
            raise DownloadError(f"{source} refused {name}; {_CREDENTIALS[source.scheme]}") from None
        except (BaseError, TimeoutError, ConnectionError, KeyError, ValueError) as error:
            raise DownloadInterrupted(f"{name} from {source.location}: {_cause(error)}") from None


async def _bounded(listed: Coroutine[Any, Any, list[ListedFile]], title: str) -> list[ListedFile]:
    """Wait for a list within its time. The library reads each page whole, of whatever size: the
    memory of this process, which does nothing else meanwhile, shows a page without end."""
    task, until, before = asyncio.ensure_future(listed), time.monotonic() + DOCUMENT_S, _peak()
    try:
        while not (await asyncio.wait((task,), timeout=_LOOK_EVERY_S))[0]:
            if time.monotonic() > until:
                raise DownloadError(f"{title} did not come whole within {DOCUMENT_S:.0f} s")
            if _peak() - before > _MAX_PAGE_BYTES:
                raise DownloadError(f"{title} has a page of more than {amount(_MAX_PAGE_BYTES)}")
        return task.result()
    finally:
        task.cancel()


def _peak() -> int:
    """The most memory that this process has had, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


async def _listed(store: S3Store | GCSStore) -> list[ListedFile]:
    entries: list[ListedFile] = []
    async for page in store.list():
        entries += [ListedFile(each["path"], each["size"]) for each in page]
        if len(entries) > 10 * MAX_FILES:  # of whatever kind
            raise DownloadError(f"the list of files has more than {10 * MAX_FILES:,}")
    return entries


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


def _store(
    source: Source, client: ClientConfig, retries: RetryConfig
) -> S3Store | GCSStore | HTTPStore:
    url = source.place
    if source.scheme == "s3":  # plain HTTP only where AWS_ENDPOINT_URL says so
        options: ClientConfig = {**client, "allow_http": True}
        return S3Store.from_url(url, client_options=options, retry_config=retries)
    if source.scheme == "gs":
        return GCSStore.from_url(url, client_options=client, retry_config=retries)
    options = {**client, "allow_http": source.scheme == "http"}
    return HTTPStore.from_url(url, client_options=options, retry_config=retries)
