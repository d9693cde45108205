"""Fetching a model: whole or not at all, through whatever goes wrong, and never twice at once."""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from profiles.catalogue.models import ArtifactFile, Artifacts
from profiles.download import fetch as fetching
from profiles.download.fetch import fetch, list_files, missing
from profiles.download.source import NgcAccess, RemoteFile, Source, read_source, source_of
from profiles.errors import DownloadError
from tests.profiles.hub import Fault, Served, serving

SIGNED = ("a?sig=1", "b?sig=2")  # a new address for each request
REPOSITORY, REVISION = "openai/gpt-oss-20b", "6cee5e81"
BIG = "model-1.safetensors"
CONTENTS = {"config.json": b"{}", BIG: os.urandom(3 << 20), "model-2.safetensors": b"z" * 100_000}
ARTIFACTS = Artifacts(
    repository=REPOSITORY,
    revision=REVISION,
    files=tuple(
        ArtifactFile(name=name, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
        for name, content in CONTENTS.items()
    ),
)


class Place(NamedTuple):
    """One kind of source, served here."""

    served: Served
    source: Source
    access: NgcAccess = NgcAccess()


def under(folder: str) -> dict[str, bytes]:
    return {f"{folder}/{name}": content for name, content in CONTENTS.items()}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with serving(under(f"{REPOSITORY}/resolve/{REVISION}")) as served:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", served.url)
        monkeypatch.setattr(
            "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
            served.url + "/{repo_id}/resolve/{revision}/{filename}",
        )
        yield Place(served, source_of(ARTIFACTS))


@pytest.fixture
def mirror() -> Iterator[Place]:
    with serving(
        {f"models/{REPOSITORY}/{name}": body for name, body in CONTENTS.items()}
    ) as served:
        yield Place(served, source_of(ARTIFACTS, f"{served.url}/models"))


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with serving(
        {f"bucket/m/{REPOSITORY}/{name}": body for name, body in CONTENTS.items()}
    ) as served:
        monkeypatch.setenv("AWS_ENDPOINT_URL", served.url)
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.setenv("AWS_REGION", "eu-west-1")
        yield Place(served, source_of(ARTIFACTS, "s3://bucket/m"))


@pytest.fixture
def ngc() -> Iterator[Place]:
    """NGC's API and the store that it sends one to, as nvapi- keys see them."""
    with serving({f"store/{name}": body for name, body in CONTENTS.items()}) as served:
        base = "v2/org/acme/team/llm/models/gpt/1.0/files?path="
        for name in CONTENTS:
            answer = {"urls": [f"{served.url}/store/{name}"], "filepath": [name]}
            served.lists[f"{base}{name}"] = json.dumps(answer).encode()
        access = NgcAccess("nvapi-secret", served.url, served.url)
        yield Place(served, source_of(ARTIFACTS, "ngc://acme/llm/gpt:1.0"), access)


@pytest.fixture(params=["hub", "mirror", "bucket", "ngc"])
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(request.param)
    return found


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pauses between attempts."""
    monkeypatch.setattr(fetching, "_PAUSE_S", 0.0)


def bring(place: Place, folder: Path) -> None:
    fetch("gpt-oss-20b", ARTIFACTS.files, folder, place.source, place.access)


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if not p.name.startswith(".")}


def test_what_is_served_arrives_whole_and_nothing_else(place: Place, tmp_path: Path) -> None:
    bring(place, tmp_path / "m")
    assert contents(tmp_path / "m") == CONTENTS
    assert len(place.served.asked) == len(CONTENTS)
    assert sorted(p.name for p in tmp_path.rglob(".*")) == [".verified.json"]


def test_what_is_there_is_not_fetched_again(place: Place, tmp_path: Path) -> None:
    (tmp_path / BIG).write_bytes(CONTENTS[BIG])
    assert [file.name for file in missing(ARTIFACTS.files, tmp_path)] == [
        "config.json",
        "model-2.safetensors",
    ]
    bring(place, tmp_path)
    assert not any(BIG in path for path, _ in place.served.asked)


def test_a_cut_connection_goes_on_where_it_was(place: Place, tmp_path: Path) -> None:
    place.served.faults[BIG] = [Fault(cut_after=2 << 20)]
    bring(place, tmp_path)
    assert contents(tmp_path) == CONTENTS
    first, second = (asked for path, asked in place.served.asked if path.endswith(BIG))
    assert first is None
    assert second is not None
    assert int(second.removeprefix("bytes=").partition("-")[0]) > 0


def test_a_line_that_is_cut_again_and_again_but_moves_gets_there(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.served.faults[BIG] = [Fault(cut_after=(1 << 20) + 1) for _ in range(2)]
    bring(place, tmp_path)
    assert contents(tmp_path) == CONTENTS


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_in_trouble_is_asked_again(place: Place, tmp_path: Path, status: int) -> None:
    place.served.faults[BIG] = [Fault(status, {"Retry-After": "0"})]
    bring(place, tmp_path)
    assert contents(tmp_path) == CONTENTS


def test_wrong_bytes_are_fetched_anew_once(place: Place, tmp_path: Path) -> None:
    place.served.faults[BIG] = [Fault(content=b"x" * len(CONTENTS[BIG]))]
    bring(place, tmp_path)
    assert contents(tmp_path) == CONTENTS


def test_a_source_with_another_file_is_refused_and_nothing_of_it_kept(
    place: Place, tmp_path: Path
) -> None:
    place.served.faults[BIG] = [Fault(content=b"x" * len(CONTENTS[BIG])) for _ in range(9)]
    with pytest.raises(
        DownloadError, match=r"model-1.safetensors was downloaded twice with another SHA-256"
    ):
        bring(place, tmp_path)
    assert BIG not in contents(tmp_path)
    assert not list(tmp_path.glob(f".partial/{BIG}*"))


@pytest.mark.parametrize("content", [b"short", b"x" * (4 << 20)], ids=["shorter", "longer"])
def test_a_file_of_the_wrong_size_is_never_kept(
    place: Place, tmp_path: Path, content: bytes
) -> None:
    place.served.faults[BIG] = [Fault(content=content) for _ in range(99)]
    with pytest.raises(DownloadError):
        bring(place, tmp_path)
    assert BIG not in contents(tmp_path)


@pytest.mark.parametrize("link", ["Q4", ".partial"])
def test_a_link_in_the_folder_leads_no_file_out(tmp_path: Path, link: str) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / link).symlink_to(tmp_path / "outside")
    with serving({"m/Q4/x.gguf": b"GGUF"}) as served:
        file, source = RemoteFile("Q4/x.gguf", 4), read_source(f"{served.url}/m", "X")
        with pytest.raises(DownloadError, match=r"outside .*; replace it by a plain folder"):
            fetch("it", [file], tmp_path / "m", source)
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_link_in_a_files_place_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("kept")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "x.gguf").symlink_to(tmp_path / "outside")
    with serving({"m/x.gguf": b"GGUF!"}) as served:
        fetch("it", [RemoteFile("x.gguf", 5)], tmp_path / "m", read_source(f"{served.url}/m", "X"))
    assert (tmp_path / "m" / "x.gguf").read_bytes() == b"GGUF!"
    assert (tmp_path / "outside").read_text() == "kept"


def test_a_missing_file_is_named(place: Place, tmp_path: Path) -> None:
    place.served.files = {k: v for k, v in place.served.files.items() if not k.endswith(BIG)}
    with pytest.raises(DownloadError, match=f"has no file {BIG}"):
        bring(place, tmp_path)


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (401, "GatedRepo", r"is gated: accept its terms at https://huggingface.co/openai/"),
        (401, "RepoNotFound", r"is not there, or is private: .* set HF_TOKEN"),
        (404, "RevisionNotFound", r"has no such revision"),
        (403, "", r"refused .* \(HTTP 403\); set HF_TOKEN"),
    ],
)
def test_what_the_hub_refuses_comes_with_a_remedy(
    hub: Place, tmp_path: Path, status: int, code: str, words: str
) -> None:
    for name in CONTENTS:
        hub.served.faults[name] = [Fault(status, {"X-Error-Code": code})]
    with pytest.raises(DownloadError, match=words):
        bring(hub, tmp_path)


@pytest.mark.parametrize("status", [401, 403])
def test_a_bucket_that_refuses_names_its_credentials(
    bucket: Place, tmp_path: Path, status: int
) -> None:
    for name in CONTENTS:
        bucket.served.faults[name] = [Fault(status)]
    with pytest.raises(DownloadError, match="check AWS_ACCESS_KEY_ID"):
        bring(bucket, tmp_path)


def test_the_hub_is_shown_the_token(
    hub: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    bring(hub, tmp_path)
    assert set(hub.served.tokens) == {"Bearer hf_secret"}


def test_what_the_library_says_of_its_inside_is_not_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(DownloadError, match="Connection refused") as raised:
        list_files(read_source(f"http://127.0.0.1:{port}/nano", "NIM_MODEL_PATH"), NgcAccess())
    assert not re.search(r"[{}]|Debug|Error performing|retries", str(raised.value))


@pytest.mark.slow
@pytest.mark.heavy  # it waits for seconds
def test_a_server_that_cannot_be_reached_keeps_what_came(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.served.faults[BIG] = [Fault(cut_after=2 << 20)] + [Fault(cut_after=0)] * 50
    with pytest.raises(DownloadError, match="start again to continue"):
        bring(place, tmp_path)
    place.served.faults.clear()
    (part,) = tmp_path.glob(f".partial/{BIG}*")
    kept = part.stat().st_size
    assert kept >= 1 << 20
    place.served.asked.clear()
    bring(place, tmp_path)
    assert contents(tmp_path) == CONTENTS
    (asked,) = [asked for path, asked in place.served.asked if path.endswith(BIG)]
    assert asked is not None
    assert asked.startswith(f"bytes={kept}-")


def test_the_hubs_large_store_is_asked_for_the_rest_and_told_no_token(
    hub: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub sends one by a redirect, signed for a while: its LFS store, or the bridge to Xet."""
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", "/nowhere")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with serving({"xet/a?sig=1": CONTENTS[BIG], "xet/b?sig=2": CONTENTS[BIG]}) as store:
        store.faults["a?sig=1"] = [Fault(cut_after=1 << 20)]
        moved = [{"Location": f"{store.url}/xet/{name}", "X-Linked-Size": "1"} for name in SIGNED]
        hub.served.faults[BIG] = [Fault(status=302, headers=headers) for headers in moved]
        bring(hub, tmp_path)
    assert contents(tmp_path) == CONTENTS
    assert set(hub.served.tokens) == {"Bearer hf_secret"}
    assert [path for path, _ in store.asked] == [f"xet/{name}" for name in SIGNED]
    assert store.asked[1][1] == f"bytes={1 << 20}-{len(CONTENTS[BIG]) - 1}"
    assert set(store.tokens) == {None}


def test_a_file_that_plain_http_does_not_bring_is_named(
    hub: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.MAX_HTTP_DOWNLOAD_SIZE", 2 << 20)
    with pytest.raises(DownloadError, match=rf"{BIG} of hf://.* has 3.1 MB, .*`hf download`"):
        bring(hub, tmp_path)


def test_the_disk_is_looked_at_before_the_first_byte(
    hub: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = fetching.shutil.disk_usage(tmp_path)._replace(free=1 << 20)  # type: ignore[attr-defined]
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(DownloadError, match=r"needs \d\.\d MB in .*NIM_CACHE_PATH"):
        bring(hub, tmp_path)
    assert not hub.served.asked


def test_a_disk_that_fills_ends_it_and_keeps_what_came(place: Place, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, hard))  # a file's last byte, as a disk's
    try:
        with pytest.raises(DownloadError, match=r"cannot be kept in .*: File too large; set NIM_C"):
            bring(place, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    place.served.asked.clear()
    bring(place, tmp_path)
    assert contents(tmp_path) == CONTENTS
    asked = {path: wanted for path, wanted in place.served.asked if BIG in path}
    assert list(asked.values()) == [f"bytes={2 << 20}-{len(CONTENTS[BIG]) - 1}"]


def test_a_cache_that_cannot_be_written_is_named(hub: Place, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DownloadError, match="set NIM_CACHE_PATH"):
        bring(hub, tmp_path / "file" / "m")
