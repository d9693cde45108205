"""Files of a model's version on NGC, by the requests that NVIDIA's SDK (ngcsdk 4.37) makes.

A key that begins with `nvapi-` is shown as it is; an older one is exchanged for a token that lasts
some minutes. Without a key NGC is asked as a guest, which is enough for public models. The API
answers a file's name with the address of a store that needs no key and sends ranges.
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import httpx

from profiles.download.pieces import NoRanges, Piece
from profiles.download.progress import Progress
from profiles.download.source import FileToFetch, Listing, NgcAccess, RemoteFile, Source
from profiles.errors import DownloadError, DownloadInterrupted

_SCOPED = "nvapi-"
_CHUNK_BYTES = 1 << 20
_PAGE = 1000  # files of a listing
_SILENCE = httpx.Timeout(30.0)
_REMEDIES = {
    401: "set NGC_API_KEY to a key of an account that may read it",
    402: "its account has no entitlement to this model: ask for one at https://ngc.nvidia.com",
    403: "accept the model's terms at https://ngc.nvidia.com, with the account of NGC_API_KEY",
}


class Ngc:
    """One version of one model."""

    def __init__(self, source: Source, access: NgcAccess) -> None:
        self._source, self._access = source, access
        *org_and_team, self._model = source.location.split("/")
        self._org, self._team = org_and_team[0], "".join(org_and_team[1:])

    def listing(self) -> Listing:
        """Every file of the version; raises DownloadError."""
        place = "/".join(filter(None, (self._org, self._team)))
        # A guest's paths have other parts in other places.
        models = f"models/{place}" if self._is_guest else f"{self._place}/models"
        url = f"{models}/{self._model}/versions/{self._source.revision}/files"
        files: list[RemoteFile] = []
        page, num_pages = 0, 1
        with self._talking("list of files") as client:
            while page < num_pages:
                answer = self._ask(client, url, {"page-size": _PAGE, "page-number": page})
                files += [_remote_file(each) for each in answer.get("modelFiles") or ()]
                num_pages = (answer.get("paginationInfo") or {}).get("totalPages") or 1
                page += 1
        return Listing(tuple(files), self._source.revision)

    def fetch(self, file: FileToFetch, piece: Piece, progress: Progress) -> None:
        """Download the rest of the piece; raises DownloadError or NoRanges."""
        models = f"models/{self._place}" if self._is_guest else f"{self._place}/models"
        url = f"{models}/{self._model}/{self._source.revision}/files"
        with self._talking(f"file {file.name}") as client:
            asked = {"Range": f"bytes={piece.next}-{piece.end - 1}"}
            headers = {} if piece.is_whole_file else asked
            address = self._ask(client, url, {"path": file.name})["urls"][0]
            with client.stream("GET", address, headers=headers) as response:
                if response.status_code in (401, 403):  # addresses hold for a while only
                    raise DownloadInterrupted(f"the address of {file.name} has expired")
                response.raise_for_status()
                if headers and response.status_code != 206:
                    raise NoRanges
                for chunk in response.iter_raw(_CHUNK_BYTES):
                    piece.write(chunk)
                    progress.add(len(chunk))

    @property
    def _is_guest(self) -> bool:
        return self._access.api_key is None

    @property
    def _place(self) -> str:
        return f"org/{self._org}" + (f"/team/{self._team}" if self._team else "")

    def _ask(self, client: httpx.Client, path: str, query: dict[str, Any]) -> dict[str, Any]:
        url = f"{self._access.api_url}/v2/{path}"
        response = client.get(url, params=query, headers=self._authorization(client))
        answer: dict[str, Any] = response.raise_for_status().json()
        return answer

    def _authorization(self, client: httpx.Client) -> dict[str, str]:
        key = self._access.api_key
        if key is None:
            return {}
        token = key if key.startswith(_SCOPED) else self._token(client, key)
        return {"Authorization": f"Bearer {token}"}

    def _token(self, client: httpx.Client, key: str) -> str:
        """Return the credential of requests: an older key is exchanged for a token of org and
        team."""
        scopes = [f"group/ngc:{self._org}"]
        scopes += [f"group/ngc:{self._org}/{self._team}"] if self._team else []
        response = client.get(
            f"{self._access.auth_url}/token",
            params={"service": "ngc", "scope": scopes},
            auth=("$oauthtoken", key),
        )
        return str(response.raise_for_status().json()["token"])

    @contextmanager
    def _talking(self, what: str) -> Iterator[httpx.Client]:
        """Open a client, whose errors are turned into words.

        It honours HTTPS_PROXY and NO_PROXY, and trusts whom the system trusts, or SSL_CERT_FILE.
        """
        try:
            with httpx.Client(timeout=_SILENCE, follow_redirects=True, verify=_trusted()) as client:
                yield client
        except httpx.HTTPStatusError as error:
            raise self._refusal(error.response, what) from None
        except (httpx.HTTPError, KeyError, IndexError, ValueError) as error:
            cause = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise DownloadInterrupted(f"{what} from {self._source}: {cause}") from None

    def _refusal(self, response: httpx.Response, what: str) -> DownloadError:
        status, host = response.status_code, response.url.host
        if status == 404:
            return DownloadError(f"{self._source} has no {what}, says {host}")
        if remedy := _REMEDIES.get(status):
            return DownloadError(f"{self._source}: {host} refused {what} (HTTP {status}); {remedy}")
        return DownloadInterrupted(f"{what} from {self._source}: {host} answered HTTP {status}")


@cache
def _trusted() -> ssl.SSLContext:
    """Whom the system trusts; to read their certificates takes 20 ms."""
    return ssl.create_default_context()


def _remote_file(entry: dict[str, Any]) -> RemoteFile:
    encoded = entry.get("sha256_base64")
    sha256 = base64.b64decode(encoded).hex() if encoded else None
    return RemoteFile(str(entry["path"]), int(entry["sizeInBytes"]), sha256)
