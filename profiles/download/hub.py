"""Files of a repository of the Hugging Face hub, by the hub's own library.

The library knows the hub's errors and honours HF_TOKEN, HF_ENDPOINT, HTTPS_PROXY and
SSL_CERT_FILE. Its `hf_hub_download` restarts a file after a crash, so that 4 GB of a shard would
be lost; the layer below it, used here, continues where a file ends. That is plain HTTP:
the hub redirects to its large store, for repositories on Xet to a bridge that it keeps for
clients without (huggingface.co/docs/hub/xet/legacy-git-lfs). What a file must be follows from the
list of files (`lfs.sha256`), at the commit that it names, and not by the headers of each answer.
"""

from __future__ import annotations

import logging
from typing import Any

import httpx2
from huggingface_hub import HfApi, constants, hf_hub_url
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

from profiles.download.pieces import NoRanges, Piece
from profiles.download.progress import Progress, amount
from profiles.download.source import FileToFetch, Listing, RemoteFile, Source
from profiles.errors import DownloadError, DownloadInterrupted

logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # we say what matters ourselves
constants.HF_HUB_DISABLE_TELEMETRY = True  # the hub is asked for the files, and for nothing else
constants.DOWNLOAD_CHUNK_SIZE = 1 << 20  # of which the last is lost when a connection breaks


class Hub:
    """One repository at one revision."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._headers = build_hf_headers(library_name="harmonium")

    def listing(self) -> Listing:
        """Every file, those in the large store with their SHA-256; raises DownloadError."""
        source = self._source
        try:
            api = HfApi(endpoint=constants.ENDPOINT, library_name="harmonium")
            info = api.model_info(source.location, revision=source.revision, files_metadata=True)
        except HfHubHTTPError as error:
            raise _refusal(source, "list of files", error) from None
        except (httpx2.HTTPError, OSError) as error:
            raise DownloadInterrupted(f"{source}: {_first_line(error)}") from None
        files = (
            RemoteFile(each.rfilename, each.size or 0, each.lfs.sha256 if each.lfs else None)
            for each in info.siblings or ()
        )
        return Listing(tuple(files), info.sha)

    def fetch(self, file: FileToFetch, piece: Piece, progress: Progress) -> None:
        """Download the rest of the piece; raises DownloadError or NoRanges."""
        source = self._source
        url = hf_hub_url(source.location, file.name, revision=source.revision)
        if file.size_bytes > constants.MAX_HTTP_DOWNLOAD_SIZE:
            raise DownloadError(
                f"{file.name} of {source} has {amount(file.size_bytes)}, and the hub serves "
                f"files above 50 GB by its own protocol only; download it with `hf download` and "
                f"set NIM_MODEL_PATH"
            )
        try:
            asked = {"Range": f"bytes={piece.next}-{piece.end - 1}"}
            http_get(
                url,
                _Writer(piece),  # type: ignore[arg-type]
                headers=self._headers if piece.is_whole_file else {**self._headers, **asked},
                expected_size=file.size_bytes if piece.is_whole_file else piece.left,
                tqdm_class=_counting(progress),
                _nb_retries=0,  # fetch.py tries again, as with every source
            )
        except HfHubHTTPError as error:
            raise _refusal(source, f"file {file.name}", error) from None
        except (httpx2.HTTPError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # of the disk
            raise DownloadInterrupted(
                f"{file.name} from {source.location}: {_first_line(error)}"
            ) from None


class _Writer:
    """The file that the library writes to: it begins where the piece continues."""

    def __init__(self, piece: Piece) -> None:
        self._piece, self._came = piece, 0
        self._most = None if piece.is_whole_file else piece.left

    def write(self, data: bytes) -> int:
        self._came += len(data)
        if self._most is not None and self._came > self._most:
            raise NoRanges  # a range was asked for, and the whole file comes
        self._piece.write(data)
        return len(data)

    def tell(self) -> int:
        return self._came


def _refusal(source: Source, what: str, error: HfHubHTTPError) -> DownloadError:
    status = error.response.status_code
    match error:
        case GatedRepoError():
            return DownloadError(
                f"{source} is gated: accept its terms at https://huggingface.co/{source.location} "
                "and set HF_TOKEN to a token of the account that did"
            )
        case RevisionNotFoundError():
            return DownloadError(f"{source}: the repository has no such revision")
        case RepositoryNotFoundError():
            return DownloadError(
                f"{source} is not there, or is private: check the name, and set HF_TOKEN to a "
                "token that may read it"
            )
        case EntryNotFoundError():
            return DownloadError(f"{source} has no {what}")
        case _ if status in (401, 403):
            return DownloadError(
                f"{source} refused {what} (HTTP {status}); set HF_TOKEN to a token that may read it"
            )
    return DownloadInterrupted(f"{what} from {source.location}: HTTP {status}")


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _counting(progress: Progress) -> type[Any]:
    """The progress bar that the library asks for; it only counts."""

    class Counter:
        def __init__(self, **_: Any) -> None: ...

        def update(self, num_bytes: int) -> None:
            progress.add(num_bytes)

        def __enter__(self) -> Counter:
            return self

        def __exit__(self, *_: object) -> None: ...

    return Counter
