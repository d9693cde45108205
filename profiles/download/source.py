"""Where a model's files are fetched from, as an operator writes it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, Protocol

from profiles.catalogue.models import Artifacts
from profiles.errors import DownloadError

Scheme = Literal["hf", "s3", "gs", "https", "http", "ngc"]

_FILE = r"(\?file=(?P<file>[\w./-]+\.gguf))?"
_HUB = re.compile(r"hf://(?P<location>[\w.-]+/[\w.-]+)([@:](?P<revision>[\w./-]+))?" + _FILE)
_NGC = re.compile(r"ngc://(?P<location>[\w.-]+/([\w.-]+/)?[\w.-]+):(?P<revision>[\w.+-]+)" + _FILE)
_MIRROR = re.compile(r"(?P<scheme>s3|gs|https|http)://(?P<location>[^/\s?#@]+(/[^\s?#]*)?)" + _FILE)
_LOGIN = re.compile(r"://[^/@]*@")
_FORMS = (
    "hf://organisation/name@revision, ngc://org/team/name:version, or a mirror's folder: "
    "s3://bucket/prefix, gs://bucket/prefix, https://host/prefix; append ?file=NAME.gguf to "
    "choose one of several GGUF models"
)


@dataclass(frozen=True, slots=True)
class Source:
    """One place: a repository of the Hugging Face hub, a model on NGC, or a mirror's folder."""

    scheme: Scheme
    location: str  # the repository, or what follows `scheme://`, without a slash at its end
    revision: str | None = None  # of a repository; the version of a model on NGC
    file: str | None = None  # the GGUF model that is meant, or the first of its files

    def __str__(self) -> str:
        return self.place + (f"?file={self.file}" if self.file else "")

    @property
    def place(self) -> str:
        mark = ":" if self.scheme == "ngc" else "@"
        revision = f"{mark}{self.revision}" if self.revision else ""
        return f"{self.scheme}://{self.location}{revision}"


class FileToFetch(Protocol):
    """A file that is to be fetched."""

    @property
    def name(self) -> str:
        """The file's name in the checkpoint folder."""
        ...

    @property
    def size_bytes(self) -> int:
        """The file's size."""
        ...

    @property
    def sha256(self) -> str | None:
        """The file's checksum as hex; None: none is known."""
        ...  # None: none is published


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file as a source lists it."""

    name: str
    size_bytes: int
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """All that a source holds, and what its revision names for ever (None: it has none)."""

    files: tuple[RemoteFile, ...]
    revision: str | None


@dataclass(frozen=True, slots=True)
class NgcAccess:
    """How NGC is asked: NGC's own variables, read by service/settings."""

    api_key: str | None = None  # None: as a guest
    api_url: str = "https://api.ngc.nvidia.com"
    auth_url: str = "https://authn.nvidia.com"

    def __repr__(self) -> str:
        return f"NgcAccess({self.api_url})"  # never the key


def source_of(artifacts: Artifacts, override: str | None = None) -> Source:
    """Return where `artifacts` are fetched from.

    A mirror (`s3://`, `gs://`, `https://`) keeps each repository's files under its name, as
    `s3://bucket/models/openai/gpt-oss-20b/config.json`; `hf://org/name@revision` and
    `ngc://org/team/name:version` are other places that hold the same files. Raises DownloadError
    if `override` is none of these.
    """
    if override is None:
        return Source("hf", artifacts.repository, artifacts.revision)
    source = read_source(override, "NIM_REPOSITORY_OVERRIDE")
    if source.file is not None:
        raise DownloadError(
            f"NIM_REPOSITORY_OVERRIDE is {source}; name a place there, and a file in NIM_MODEL_PATH"
        )
    if source.scheme in ("hf", "ngc"):
        return source
    return Source(source.scheme, f"{source.location}/{artifacts.repository}")


def read_source(text: str, setting: str) -> Source:
    """Read a source that is written down; raises DownloadError that names `setting`."""
    if match := _HUB.fullmatch(text):
        return Source("hf", match["location"], match["revision"] or "main", match["file"])
    if match := _NGC.fullmatch(text):
        return Source("ngc", match["location"], match["revision"], match["file"])
    if match := _MIRROR.fullmatch(text):
        return _mirror(match["scheme"], match["location"], match["file"])  # type: ignore[arg-type]
    if (bare := _LOGIN.sub("://", text)) != text:
        raise DownloadError(
            f"{setting} has a name or password before {bare!r}: a mirror serves without a login, "
            "buckets take theirs from the environment (AWS_ACCESS_KEY_ID, "
            "GOOGLE_APPLICATION_CREDENTIALS)"
        )
    raise DownloadError(f"{setting} is {text!r}; write {_FORMS}")


def _mirror(scheme: Scheme, location: str, file: str | None) -> Source:
    """The address of a GGUF file itself means that file of its folder."""
    if file is None and location.endswith(".gguf"):
        location, _, file = location.rpartition("/")
    return Source(scheme, location.rstrip("/"), file=file)
