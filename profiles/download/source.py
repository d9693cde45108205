"""Where a model's files are fetched from, as an operator writes it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from profiles.errors import DownloadError
from profiles.models import Artifacts

Scheme = Literal["hf", "s3", "gs", "https", "http"]

_HUB = re.compile(r"hf://(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")
_MIRROR = re.compile(r"(?P<scheme>s3|gs|https|http)://(?P<location>[^/\s?#]+(/[^\s?#]*)?)")


@dataclass(frozen=True, slots=True)
class Source:
    """One place: a repository of the Hugging Face hub, or a folder of a mirror."""

    scheme: Scheme
    location: str  # the repository, or what follows `scheme://`, without a slash at its end
    revision: str | None = None  # of a repository

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"{self.scheme}://{self.location}{revision}"


def source_of(artifacts: Artifacts, override: str | None = None) -> Source:
    """Return where `artifacts` are fetched from.

    A mirror (`s3://`, `gs://`, `https://`) keeps each repository's files under its name, as
    `s3://bucket/models/openai/gpt-oss-20b/config.json`; `hf://org/name@revision` is another
    repository of the hub that holds the same files. Raises DownloadError if `override` is neither.
    """
    if override is None:
        return Source("hf", artifacts.repository, artifacts.revision)
    if match := _HUB.fullmatch(override):
        return Source("hf", match["repository"], match["revision"] or "main")
    if match := _MIRROR.fullmatch(override):
        base = match["location"].rstrip("/")
        return Source(match["scheme"], f"{base}/{artifacts.repository}")  # type: ignore[arg-type]
    raise DownloadError(
        f"NIM_REPOSITORY_OVERRIDE is {override!r}; write hf://organisation/name@revision, or a "
        "mirror's folder: s3://bucket/prefix, gs://bucket/prefix, https://host/prefix"
    )
