"""Where a model's files are fetched from, as an operator writes it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal, NamedTuple, Protocol

from profiles.catalogue.models import Artifacts
from profiles.checkpoints.file_names import check_name, check_size, is_own, shown
from profiles.errors import DownloadError

Scheme = Literal["hf", "s3", "gs", "https", "http", "ngc"]

SERVED: Final = (".safetensors", ".json", ".jinja", ".gguf")  # what models have
MAX_FILES: Final = 10_000  # of a list
_WEIGHTS: Final = (".safetensors", ".gguf")
_MAX_TEXT_BYTES: Final = 64 << 20  # gpt-oss's largest, tokenizer.json, has 28 MB
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
    def name(self) -> str: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def sha256(self) -> str | None:
        """The file's checksum as hex; None: none is known."""
        ...  # None: none is published


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file as a source lists it; raises DownloadError for what no file of a model can be."""

    name: str
    size_bytes: int
    sha256: str | None = None

    def __post_init__(self) -> None:
        try:
            check_name(self.name)
        except ValueError as error:
            raise DownloadError(f"the list of files has {error}") from None
        try:
            check_size(self.size_bytes)
            if not self.name.endswith(_WEIGHTS) and self.size_bytes > _MAX_TEXT_BYTES:
                raise ValueError(f"a size of {self.size_bytes:,} bytes")
        except ValueError as error:
            raise DownloadError(f"the list of files has {shown(self.name)} with {error}") from None
        if self.sha256 is not None and not _is_sha256(self.sha256):
            raise DownloadError(
                f"the list of files has {shown(self.name)} with {shown(self.sha256)}, which is no "
                "SHA-256"
            )


@dataclass(frozen=True, slots=True)
class Listing:
    """What a source holds of models, and what its revision names for ever (None: it has none).

    Raises DownloadError for a revision that cannot be one, and for a file that is listed twice.
    """

    files: tuple[RemoteFile, ...]
    revision: str | None

    def __post_init__(self) -> None:
        if self.revision is not None and not _is_revision(self.revision):
            raise DownloadError(f"the list of files has the revision {shown(self.revision)}")
        names = {file.name for file in self.files}
        if len(names) < len(self.files):
            twice = next(n for n in names if sum(file.name == n for file in self.files) > 1)
            raise DownloadError(f"the list of files has {shown(twice)} twice")


class ListedFile(NamedTuple):
    """A file in a source's words, of which nothing is checked."""

    name: object
    size_bytes: object
    sha256: object = None


def listing(source: Source, entries: Iterable[ListedFile], revision: object = None) -> Listing:
    """Check what a source lists; raises DownloadError that names it.

    Leaves out what is no file of a model, and hidden files, such as .gitattributes.
    """
    try:
        files = tuple(_file(each) for each in islice(_of_models(entries), MAX_FILES + 1))
        if len(files) > MAX_FILES:
            raise DownloadError(f"the list of files has more than {MAX_FILES:,}")
        return Listing(files, revision)  # type: ignore[arg-type]
    except DownloadError as error:
        raise DownloadError(f"{source.place}: {error}") from None


def _of_models(entries: Iterable[ListedFile]) -> Iterator[ListedFile]:
    for entry in entries:
        name = entry.name
        if not isinstance(name, str):
            yield entry  # which is refused
        elif not is_own(name) and name.endswith(".gguf" if "/" in name else SERVED):
            yield entry


def _file(entry: ListedFile) -> RemoteFile:
    return RemoteFile(entry.name, entry.size_bytes, entry.sha256)  # type: ignore[arg-type]


def _is_sha256(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) is not None


def _is_revision(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"(?!.*\.\.)[\w./+-]{1,200}", value) is not None


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
