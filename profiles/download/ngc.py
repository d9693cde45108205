"""Files of a model's version on NGC, by the requests that NVIDIA's SDK (ngcsdk 4.37) makes.

A key that begins with `nvapi-` is shown as it is; an older one is exchanged for a token that lasts
some minutes. Without a key NGC is asked as a guest, which is enough for public models. The API
answers a file's name with the address of a store that needs no key and sends ranges.
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, Final

import httpx2
import msgspec

from profiles.download.answers import (
    PLAIN,
    SILENCE_S,
    Document,
    asked_range,
    decoded,
    raw_document,
    wait_of,
    write_answer,
)
from profiles.download.pieces import FilePiece
from profiles.download.progress import Progress
from profiles.download.source import (
    MAX_FILES,
    FileToFetch,
    ListedFile,
    Listing,
    NgcAccess,
    Source,
    listing,
)
from profiles.errors import DownloadError, DownloadInterrupted

_SCOPED = "nvapi-"
_CHUNK_BYTES = 1 << 20
_PAGE = 1000  # files of a listing
_MAX_PAGES: Final = MAX_FILES // _PAGE
_SILENCE = httpx2.Timeout(30.0)
_REMEDIES = {
    401: "set NGC_API_KEY to a key of an account that may read it",
    402: "its account has no entitlement to this model: ask for one at https://ngc.nvidia.com",
    403: "accept the model's terms at https://ngc.nvidia.com, with the account of NGC_API_KEY",
}


class _ModelFile(msgspec.Struct):
    path: str
    size: int = msgspec.field(name="sizeInBytes")
    sha256_base64: str | None = None


class _Pages(msgspec.Struct):
    total: int | None = msgspec.field(name="totalPages", default=None)


class _Page(msgspec.Struct):
    """One page of NGC's list of files."""

    files: list[_ModelFile] | None = msgspec.field(name="modelFiles", default=None)
    pages: _Pages | None = msgspec.field(name="paginationInfo", default=None)


class _Address(msgspec.Struct):
    """Where NGC says that a file is."""

    urls: Annotated[list[str], msgspec.Meta(min_length=1)]


class _Token(msgspec.Struct):
    token: Annotated[str, msgspec.Meta(min_length=1, max_length=16_384)]


class Ngc:
    """One version of one model."""

    def __init__(self, source: Source, access: NgcAccess) -> None:
        self._source, self._access = source, access
        *org_and_team, self._model = source.location.split("/")
        self._org, self._team = org_and_team[0], "".join(org_and_team[1:])

    def listing(self) -> Listing:
        place = "/".join(filter(None, (self._org, self._team)))
        # A guest's paths have other parts in other places.
        models = f"models/{place}" if self._is_guest else f"{self._place}/models"
        url = f"{models}/{self._model}/versions/{self._source.revision}/files"
        entries: list[ListedFile] = []
        page, num_pages = 0, 1
        with self._talking("list of files") as client:
            while page < num_pages:
                query = {"page-size": _PAGE, "page-number": page}
                answer = self._ask(client, url, query, _Page, "the list of files")
                entries += map(_entry, answer.files or ())
                num_pages = (answer.pages and answer.pages.total) or 1
                if num_pages > _MAX_PAGES:
                    raise DownloadError(
                        f"{self._source}: the list of files has {num_pages:,} pages"
                    )
                page += 1
        return listing(self._source, entries, self._source.revision)

    def fetch(self, file: FileToFetch, piece: FilePiece, progress: Progress) -> None:
        models = f"models/{self._place}" if self._is_guest else f"{self._place}/models"
        url = f"{models}/{self._model}/{self._source.revision}/files"
        with self._talking(f"file {file.name}") as client:
            query = {"path": file.name}
            address = self._ask(client, url, query, _Address, f"the address of {file.name}")
            with client.stream("GET", address.urls[0], headers=asked_range(piece)) as response:
                if response.status_code in (401, 403):  # addresses hold for a while only
                    raise DownloadInterrupted(f"the address of {file.name} has expired")
                response.raise_for_status()
                title = f"{file.name} from {self._source}"
                write_answer(response, title, piece, progress, _CHUNK_BYTES)

    @property
    def _is_guest(self) -> bool:
        return self._access.api_key is None

    @property
    def _place(self) -> str:
        return f"org/{self._org}" + (f"/team/{self._team}" if self._team else "")

    def _ask(
        self,
        client: httpx2.Client,
        path: str,
        query: dict[str, Any],
        kind: type[Document],
        what: str,
    ) -> Document:
        url = f"{self._access.api_url}/v2/{path}"
        headers = self._authorization(client)
        return self._document(client, url, query, kind, what, headers=headers)

    def _document(
        self,
        client: httpx2.Client,
        url: str,
        query: dict[str, Any],
        kind: type[Document],
        what: str,
        headers: Mapping[str, str] = MappingProxyType({}),
        auth: tuple[str, str] | None = None,
    ) -> Document:
        """Ask for JSON of a known kind, within a bound of bytes and time."""
        title = f"{self._source}: {what}"
        with client.stream(
            "GET", url, params=query, headers={**PLAIN, **headers}, auth=auth, timeout=SILENCE_S
        ) as response:
            response.raise_for_status()
            return decoded(raw_document(response, title), kind, title)

    def _authorization(self, client: httpx2.Client) -> dict[str, str]:
        key = self._access.api_key
        if key is None:
            return {}
        token = key if key.startswith(_SCOPED) else self._token(client, key)
        return {"Authorization": f"Bearer {token}"}

    def _token(self, client: httpx2.Client, key: str) -> str:
        """Return the credential of requests: an older key is exchanged for a token of org and
        team."""
        scopes = [f"group/ngc:{self._org}"]
        scopes += [f"group/ngc:{self._org}/{self._team}"] if self._team else []
        url, query = f"{self._access.auth_url}/token", {"service": "ngc", "scope": scopes}
        auth = ("$oauthtoken", key)
        return self._document(client, url, query, _Token, "the token", auth=auth).token

    @contextmanager
    def _talking(self, what: str) -> Iterator[httpx2.Client]:
        """Open a client, whose errors are turned into words.

        It honours HTTPS_PROXY and NO_PROXY, and trusts whom the system trusts, or SSL_CERT_FILE.
        """
        try:
            with httpx2.Client(
                timeout=_SILENCE, follow_redirects=True, verify=_trusted()
            ) as client:
                yield client
        except httpx2.HTTPStatusError as error:
            raise self._refusal(error.response, what) from None
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            cause = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise DownloadInterrupted(f"{what} from {self._source}: {cause}") from None

    def _refusal(self, response: httpx2.Response, what: str) -> DownloadError:
        status, host = response.status_code, response.url.host
        if status == 404:
            return DownloadError(f"{self._source} has no {what}, says {host}")
        if remedy := _REMEDIES.get(status):
            return DownloadError(f"{self._source}: {host} refused {what} (HTTP {status}); {remedy}")
        return DownloadInterrupted(
            f"{what} from {self._source}: {host} answered HTTP {status}", wait_of(response.headers)
        )


@cache
def _trusted() -> ssl.SSLContext:
    """Whom the system trusts; to read their certificates takes 20 ms."""
    return ssl.create_default_context()


def _entry(file: _ModelFile) -> ListedFile:
    encoded = file.sha256_base64
    try:
        sha256 = base64.b64decode(encoded, validate=True).hex() if encoded else None
    except ValueError:
        sha256 = encoded  # which is refused with the file's name
    return ListedFile(file.path, file.size, sha256)
