"""NGC as its own SDK speaks to it: keys, guests, listings and refusals."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from profiles.download import fetch as fetching
from profiles.download.fetch import fetch, open_remote
from profiles.download.source import NgcAccess, RemoteFile, Source, read_source
from profiles.errors import DownloadError
from tests.profiles.hub import Fault, Served, serving

CONTENT = b"{}"
SHA256 = hashlib.sha256(CONTENT)
FILE = RemoteFile("config.json", len(CONTENT), SHA256.hexdigest())
SOURCE = read_source("ngc://nim/openai/gpt-oss-20b:hf-6cee5e8", "X")
DOWNLOAD = "gpt-oss-20b/hf-6cee5e8/files?path=config.json"


@pytest.fixture
def ngc() -> Iterator[Served]:
    with serving({"store/config.json": CONTENT}) as served:
        yield served


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "_PAUSE_S", 0.0)


def bring(served: Served, folder: Path, key: str | None, source: Source = SOURCE) -> None:
    access = NgcAccess(key, served.url, served.url)
    fetch("gpt-oss-20b", [FILE], folder, source, access)
    assert (folder / FILE.name).read_bytes() == CONTENT


def address(served: Served) -> bytes:
    return json.dumps({"urls": [f"{served.url}/store/config.json"]}).encode()


def test_an_older_key_is_exchanged_for_a_token_of_org_and_team(ngc: Served, tmp_path: Path) -> None:
    token = "token?service=ngc&scope=group%2Fngc%3Anim&scope=group%2Fngc%3Anim%2Fopenai"
    path = f"v2/org/nim/team/openai/models/{DOWNLOAD}"
    ngc.lists = {token: b'{"token": "short-lived", "expires_in": 600}', path: address(ngc)}
    bring(ngc, tmp_path, "an-old-key")
    basic = base64.b64encode(b"$oauthtoken:an-old-key").decode()
    assert ngc.looked_up == [(token, f"Basic {basic}"), (path, "Bearer short-lived")]
    assert ngc.tokens == [None]  # the store's address is enough


def test_a_scoped_key_is_shown_as_it_is(ngc: Served, tmp_path: Path) -> None:
    path = f"v2/org/acme/models/{DOWNLOAD}"
    ngc.lists = {path: address(ngc)}
    bring(ngc, tmp_path, "nvapi-1", read_source("ngc://acme/gpt-oss-20b:hf-6cee5e8", "X"))
    assert ngc.looked_up == [(path, "Bearer nvapi-1")]


def test_without_a_key_a_public_model_is_asked_for_as_a_guest(ngc: Served, tmp_path: Path) -> None:
    path = f"v2/models/org/nim/team/openai/{DOWNLOAD}"
    ngc.lists = {path: address(ngc)}
    bring(ngc, tmp_path, None)
    assert ngc.looked_up == [(path, None)]


def test_an_address_that_has_expired_is_asked_for_anew(ngc: Served, tmp_path: Path) -> None:
    path = f"v2/models/org/nim/team/openai/{DOWNLOAD}"
    ngc.lists = {path: address(ngc)}
    ngc.faults["config.json"] = [Fault(403)]
    bring(ngc, tmp_path, None)
    assert [asked for asked, _ in ngc.looked_up] == [path, path]


def test_a_listing_has_every_page_and_the_checksums(ngc: Served) -> None:
    entry = {
        "path": "config.json",
        "sizeInBytes": 2,
        "sha256_base64": base64.b64encode(SHA256.digest()).decode(),
    }
    plain = {"path": "a.safetensors", "sizeInBytes": 7}
    base = "v2/org/nim/team/openai/models/gpt-oss-20b/versions/hf-6cee5e8/files?page-size=1000"
    pages = {"paginationInfo": {"totalPages": 2}}
    ngc.lists = {
        f"{base}&page-number=0": json.dumps({"modelFiles": [entry], **pages}).encode(),
        f"{base}&page-number=1": json.dumps({"modelFiles": [plain], **pages}).encode(),
    }
    remote = open_remote(SOURCE, NgcAccess("nvapi-1", ngc.url, ngc.url))
    assert remote.listing().files == (FILE, RemoteFile("a.safetensors", 7))


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        (401, "set NGC_API_KEY to a key of an account that may read it"),
        (402, "its account has no entitlement to this model"),
        (403, "accept the model's terms at https://ngc.nvidia.com"),
        (404, "has no file config.json"),
    ],
)
def test_what_ngc_refuses_comes_with_a_remedy(
    ngc: Served, tmp_path: Path, status: int, remedy: str
) -> None:
    ngc.faults["files?path=config.json"] = [Fault(status)]
    with pytest.raises(DownloadError, match=remedy) as caught:
        bring(ngc, tmp_path, "nvapi-secret")
    assert "nvapi-secret" not in str(caught.value)
