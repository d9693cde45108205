"""Where models come from, as settings write it."""

from __future__ import annotations

import pytest

from profiles.catalogue.models import Artifacts
from profiles.download.source import (
    ListedFile,
    Listing,
    RemoteFile,
    listing,
    read_source,
    source_of,
)
from profiles.errors import DownloadError

REPOSITORY, REVISION = "openai/gpt-oss-20b", "6cee5e81"
ARTIFACTS = Artifacts(repository=REPOSITORY, revision=REVISION, files=())


@pytest.mark.parametrize(
    ("override", "source"),
    [
        (None, f"hf://{REPOSITORY}@{REVISION}"),
        ("hf://mirror/gpt@v1", "hf://mirror/gpt@v1"),
        ("hf://mirror/gpt", "hf://mirror/gpt@main"),
        ("s3://bucket/models/", f"s3://bucket/models/{REPOSITORY}"),
        ("https://host:8443", f"https://host:8443/{REPOSITORY}"),
    ],
)
def test_sources_are_written_as_in_nim(override: str | None, source: str) -> None:
    assert str(source_of(ARTIFACTS, override)) == source


@pytest.mark.parametrize(
    ("text", "place", "file"),
    [
        ("hf://acme/gpt-GGUF?file=a.gguf", "hf://acme/gpt-GGUF@main", "a.gguf"),
        ("hf://acme/gpt@refs/pr/1?file=Q4/a.gguf", "hf://acme/gpt@refs/pr/1", "Q4/a.gguf"),
        ("ngc://org/team/gpt:1.0?file=a.gguf", "ngc://org/team/gpt:1.0", "a.gguf"),
        ("s3://bucket/m/a.gguf", "s3://bucket/m", "a.gguf"),
        ("https://host/m/?file=a.gguf", "https://host/m", "a.gguf"),
        ("https://host/m", "https://host/m", None),
    ],
)
def test_one_file_of_a_place_can_be_named(text: str, place: str, file: str | None) -> None:
    source = read_source(text, "X")
    assert (source.place, source.file) == (place, file)
    assert read_source(str(source), "X") == source


def test_a_file_is_no_place_of_all_models() -> None:
    with pytest.raises(DownloadError, match="a file in NIM_MODEL_PATH"):
        source_of(ARTIFACTS, "https://host/m/a.gguf")


def test_a_password_in_an_address_is_refused_and_not_shown() -> None:
    with pytest.raises(DownloadError, match="a mirror serves without a login") as caught:
        source_of(ARTIFACTS, "https://me:secret@host/m")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "override", ["ftp://x/y", "hf://only-a-name", "s3://", "/models", "https:/x"]
)
def test_a_source_that_cannot_be_read_is_refused(override: str) -> None:
    with pytest.raises(DownloadError, match="NIM_REPOSITORY_OVERRIDE is"):
        source_of(ARTIFACTS, override)


@pytest.mark.parametrize(
    ("name", "size", "sha256"),
    [
        ("../x.gguf", 1, None),
        ("/x.gguf", 1, None),
        (".listing.json", 1, None),
        ("a/.b/x.gguf", 1, None),
        ("packed.json", 1, None),
        ("a//x.gguf", 1, None),
        ("a\\x.gguf", 1, None),
        ("a\0.gguf", 1, None),
        ("x" * 256, 1, None),
        ("", 1, None),
        (None, 1, None),
        ("x.gguf", -1, None),
        ("x.gguf", True, None),
        ("x.gguf", 1 << 60, None),
        ("x.gguf", "1", None),
        ("x.json", 1 << 30, None),
        ("x.gguf", 1, "ab"),
        ("x.gguf", 1, "A" * 64),
    ],
)
def test_what_no_file_of_a_model_can_be_is_refused(name: str, size: int, sha256: str) -> None:
    with pytest.raises(DownloadError, match="the list of files has"):
        RemoteFile(name, size, sha256)


def test_what_is_no_part_of_a_model_is_left_out_of_a_list() -> None:
    source = read_source("hf://acme/gpt", "X")
    names = [
        "config.json",
        "Q4/ü-1.gguf",
        ".gitattributes",
        "a b.md",
        "x/..\\y.json",
        "packed.json",
    ]
    listed = listing(source, (ListedFile(name, 1) for name in names), "abc")
    assert listed == Listing((RemoteFile("config.json", 1), RemoteFile("Q4/ü-1.gguf", 1)), "abc")
