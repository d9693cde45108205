"""Files of a repository of the Hugging Face hub, by the client of the hub's own library.

The client honours HF_TOKEN, HF_ENDPOINT, HTTPS_PROXY and SSL_CERT_FILE. The library's functions
are not used: they read answers whole, wait for as long as a server asks, and `hf_hub_download`
restarts a file after a crash, so that 4 GB of a shard would be lost. Files come by plain HTTP:
the hub redirects to its large store, for repositories on Xet to a bridge that it keeps for
clients without (huggingface.co/docs/hub/xet/legacy-git-lfs). What a file must be follows from the
list of files (`lfs.sha256`), at the commit that it names, and not by the headers of each answer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

import httpx2
import msgspec
from huggingface_hub import constants, hf_hub_url
from huggingface_hub.utils import (  # type: ignore[attr-defined]
    build_hf_headers,
    get_session,
)

from profiles.download.answers import (
    PLAIN,
    SILENCE_S,
    asked_range,
    decoded,
    raw_document,
    wait_of,
    write_answer,
)
from profiles.download.pieces import FilePiece
from profiles.download.progress import Progress, amount
from profiles.download.source import FileToFetch, ListedFile, Listing, Source, listing
from profiles.errors import DownloadError, DownloadInterrupted

logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # we say what matters ourselves
constants.HF_HUB_DISABLE_TELEMETRY = True  # the hub is asked for the files, and for nothing else
constants.DOWNLOAD_CHUNK_SIZE = 1 << 20  # of which the last is lost when a connection breaks


_PATIENCE_S = 10.0  # with a silent file; the library's own


class _Lfs(msgspec.Struct):
    sha256: str | None = None


class _Sibling(msgspec.Struct):
    rfilename: str
    size: int | None = None
    lfs: _Lfs | None = None


class _Model(msgspec.Struct):
    """The hub's list of files."""

    sha: str
    siblings: list[_Sibling]


class Hub:
    """One repository at one revision."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._headers = build_hf_headers(library_name="harmonium")

    def listing(self) -> Listing:
        """Every file of a model, those in the large store with their SHA-256."""
        source, what = self._source, "list of files"
        url = f"{constants.ENDPOINT}/api/models/{source.location}"
        if source.revision is not None:
            url += f"/revision/{quote(source.revision, safe='')}"
        try:
            with self._asked(f"{url}?blobs=true", PLAIN, what, SILENCE_S) as answer:
                content = raw_document(answer, f"{source}: the {what}")
        except OSError as error:  # of SSL_CERT_FILE
            raise DownloadError(f"{source}: {_first_line(error)}") from None
        model = decoded(content, _Model, f"{source}: the {what}")
        entries = (
            ListedFile(each.rfilename, each.size or 0, each.lfs.sha256 if each.lfs else None)
            for each in model.siblings
        )
        return listing(source, entries, model.sha)

    def fetch(self, file: FileToFetch, piece: FilePiece, progress: Progress) -> None:
        source = self._source
        url = hf_hub_url(source.location, file.name, revision=source.revision)
        if file.size_bytes > constants.MAX_HTTP_DOWNLOAD_SIZE:
            raise DownloadError(
                f"{file.name} of {source} has {amount(file.size_bytes)}, and the hub serves "
                f"files above 50 GB by its own protocol only; download it with `hf download` and "
                f"set NIM_MODEL_PATH"
            )
        with self._asked(url, asked_range(piece), f"file {file.name}", _PATIENCE_S) as answer:
            title = f"{file.name} from {source.location}"
            write_answer(answer, title, piece, progress, constants.DOWNLOAD_CHUNK_SIZE)

    @contextmanager
    def _asked(
        self, url: str, headers: dict[str, str], what: str, silence_s: float
    ) -> Iterator[httpx2.Response]:
        """Send a request; its errors are turned into words."""
        try:
            with get_session().stream(
                "GET", url, headers={**self._headers, **headers}, timeout=silence_s
            ) as answer:
                if answer.status_code >= 300:
                    raise _refusal(self._source, what, answer)
                yield answer
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # of the disk
            place = self._source.location
            raise DownloadInterrupted(f"{what} from {place}: {_first_line(error)}") from None


def _refusal(source: Source, what: str, answer: httpx2.Response) -> DownloadError:
    status = answer.status_code
    match answer.headers.get("X-Error-Code", ""):
        case "GatedRepo":
            return DownloadError(
                f"{source} is gated: accept its terms at https://huggingface.co/{source.location} "
                "and set HF_TOKEN to a token of the account that did"
            )
        case "RevisionNotFound":
            return DownloadError(f"{source}: the repository has no such revision")
        case code if code == "RepoNotFound" or status == 401:
            return DownloadError(
                f"{source} is not there, or is private: check the name, and set HF_TOKEN to a "
                "token that may read it"
            )
        case code if code == "EntryNotFound" or status == 404:
            return DownloadError(f"{source} has no {what}")
        case _ if status == 403:
            return DownloadError(
                f"{source} refused {what} (HTTP {status}); set HF_TOKEN to a token that may read it"
            )
    place = source.location
    return DownloadInterrupted(f"{what} from {place}: HTTP {status}", wait_of(answer.headers))


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
