"""Adapters of the Hugging Face hub and of S3 buckets, fetched into the cache.

What has no checksum is not fetched: the hub lists one, a bucket does not, and the caller names it.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from parts.lora.files import CONFIG, WEIGHTS, AdapterError, NoAdapter
from profiles.download.fetch import fetch, list_files
from profiles.download.source import Source, read_source
from profiles.errors import DownloadError


class NotFetched(AdapterError):
    """The place did not give it."""


def fetched(text: str, sha256: str | None, cache: Path | None) -> Path:
    """The folder of the adapter at `hf://organisation/name@revision` or `s3://bucket/prefix`.

    `sha256`: of its weights. `cache`: None if nothing may be fetched. Raises AdapterError.
    """
    if cache is None:
        raise AdapterError(
            f"{text[:256]!r} is not fetched: NIM_DISABLE_MODEL_DOWNLOAD forbids it; put the "
            "adapter into a folder below NIM_PEFT_SOURCE"
        )
    try:
        source = read_source(text, "lora_path") if text.startswith(("hf://", "s3://")) else None
    except DownloadError:
        source = None
    if source is None:
        forms = "hf://organisation/name@revision or s3://bucket/prefix"
        raise AdapterError(f"{text[:256]!r} is no place of an adapter; write {forms}")
    try:
        return _fetched(source, sha256, cache)
    except DownloadError as error:  # the other lines say what to do about a model
        raise NotFetched(str(error).splitlines()[0]) from None


def _fetched(source: Source, sha256: str | None, cache: Path) -> Path:
    listing = list_files(source)
    files = {file.name: file for file in listing.files}
    if lacking := {CONFIG, WEIGHTS} - files.keys():
        raise NoAdapter(f"{source} has no {min(lacking)}; name a place that PEFT saved to")
    listed = files[WEIGHTS].sha256
    if (known := sha256 or listed) is None:
        raise AdapterError(f"{source} lists no SHA-256 of {WEIGHTS}; send it as sha256")
    if listed not in (None, known):
        raise AdapterError(f"{source}: {WEIGHTS} has the SHA-256 {listed}, and sha256 is {known}")
    place = replace(source, revision=listing.revision)
    digest = hashlib.sha256(f"{place} {known}".encode()).hexdigest()[:12]
    folder = cache / "adapters" / f"{source.location.rpartition('/')[2]}-{digest}"
    wanted = [files[CONFIG], replace(files[WEIGHTS], sha256=known)]
    fetch(f"the adapter {source}", wanted, folder, place)
    return folder
