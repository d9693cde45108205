"""Who gets in where nothing is configured."""

from __future__ import annotations

import logging
import os
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from auth.address import is_loopback
from auth.base import AccessError
from service.run.first_key import tell_access, with_made_key
from service.settings.errors import SettingsError
from service.settings.settings import load
from tests import plain


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_is_open(host: str) -> None:
    settings = load({"server_host": host})
    assert with_made_key(settings) is settings
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com", "127.1"])
def test_elsewhere_a_key_is_made_and_told_once(
    host: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    configured = load({"server_host": host})
    keys = [with_made_key(configured).api_key_list for _ in range(2)]
    assert keys[0] != keys[1]
    settings = with_made_key(configured)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    tell_access(settings, 8000, is_made=True)
    [key] = settings.api_key_list
    assert capsys.readouterr().out.count(key) == 1
    assert key not in caplog.text
    assert "NIM_AUTH=off" in caplog.text


def made_file(caplog: pytest.LogCaptureFixture) -> Path:
    [line] = [line for line in caplog.messages if "readable by its owner only" in line]
    return Path(line.split(" is in ")[1].split(",")[0])


@pytest.mark.parametrize("is_writable", [True, False])
def test_without_a_terminal_it_goes_to_a_file_for_its_owner_alone(
    tmp_path: Path,
    is_writable: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Standard output is a container's log then, which more people read than may call."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cache = tmp_path / "cache"
    if is_writable:
        cache.mkdir()
        (cache / "api-key-8000").write_text("of the run before")
        (cache / "api-key-8000").chmod(0o644)
    else:
        cache.touch()
    settings = with_made_key(load({"server_host": "0.0.0.0", "cache_path": cache}))
    tell_access(settings, 8000, is_made=True)
    path = made_file(caplog)
    assert path.read_text().strip() == settings.api_key_list[0]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert is_writable == (path == cache / "api-key-8000")
    assert settings.api_key_list[0] not in caplog.text + capsys.readouterr().out


def test_a_key_that_can_be_handed_to_nobody_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    settings = with_made_key(load({"server_host": "::", "cache_path": tmp_path / "cache"}))
    with pytest.raises(AccessError, match=r"cannot be written: .*NIM_API_KEYS"):
        tell_access(settings, 8000, is_made=True)


@pytest.mark.parametrize("has_room_elsewhere", [True, False])
def test_a_full_disk_costs_one_sentence_or_the_other_folder(
    tmp_path: Path,
    has_room_elsewhere: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Opening a file works on a full disk, writing to it fails: as on /dev/full."""
    caplog.set_level(logging.INFO)
    cache, other = tmp_path / "cache", tmp_path / "other"
    other.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(other))
    opened = os.fdopen
    num_opened = 0

    def full(descriptor: int, mode: str) -> Any:
        nonlocal num_opened
        num_opened += 1
        if has_room_elsewhere and num_opened == 2:
            return opened(descriptor, mode)
        os.close(descriptor)
        return opened(os.open("/dev/full", os.O_WRONLY), mode)

    monkeypatch.setattr("service.run.first_key.os.fdopen", full)
    settings = with_made_key(load({"server_host": "::", "cache_path": cache}))
    if has_room_elsewhere:
        tell_access(settings, 8000, is_made=True)
        assert made_file(caplog).read_text().strip() == settings.api_key_list[0]
    else:
        with pytest.raises(AccessError) as caught:
            tell_access(settings, 8000, is_made=True)
        assert (
            f"{cache / 'api-key-8000'}: No space left on device; {other}: No" in f"{caught.value}"
        )
        assert list(other.iterdir()) == []
    assert list(cache.iterdir()) == []


def test_none_is_made_where_keys_are_configured() -> None:
    settings = load({"server_host": "0.0.0.0", "api_keys": SecretStr("one-configured-key")})
    assert with_made_key(settings) is settings


def test_off_must_be_said_and_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    settings = load({"server_host": "0.0.0.0", "auth": "off"})
    assert with_made_key(settings) is settings
    tell_access(settings, 8000, is_made=False)
    assert "anyone who can reach 0.0.0.0" in caplog.text


@pytest.mark.parametrize("given", [{}, {"api_keys": SecretStr("one-configured-key")}])
def test_pages_from_everywhere_are_warned_of(
    given: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    tell_access(load({"cors_allow_origins": "*"} | given), 8000, is_made=False)
    assert "NIM_CORS_ALLOW_ORIGINS=*" in caplog.text
    assert ("has no keys" in caplog.text) == (not given)


def test_off_and_keys_contradict_each_other() -> None:
    with pytest.raises(SettingsError, match=r"--auth .*NIM_API_KEYS"):
        load({"auth": "off", "api_keys": SecretStr("one-configured-key")})


def test_the_made_key_opens_and_stands_in_its_file_alone(
    serve: Callable[..., Any], tmp_path: Path
) -> None:
    server = serve("--server-host=::", NIM_CACHE_PATH=str(tmp_path))
    url = f"{server.url}/v1/models"
    assert str(tmp_path) in server.wait_for("readable by its owner only")
    [path] = tmp_path.glob("api-key-*")
    key = path.read_text().strip()
    assert path.name.endswith(server.url.rpartition(":")[2])
    assert plain.get(url, timeout=60).status_code == 401
    assert plain.get(url, headers={"X-API-Key": key}, timeout=60).status_code == 200
    assert server.end() == 0
    assert not any(key in line for line in server.log + server.out)


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (None, 200),
        ("http://localhost:3000", 200),
        ("http://127.0.0.1", 200),
        ("http://[::1]:8000", 200),
        ("https://evil.example", 403),
        ("http://localhost.evil.example", 403),
        ("null", 403),
        ("", 403),
        ("http://[", 403),
    ],
)
async def test_an_open_server_is_not_for_pages_from_elsewhere(
    client_of: Callable[..., Any], origin: str | None, status: int
) -> None:
    client = await client_of(is_local=True)
    headers = {} if origin is None else {"Origin": origin}
    answer = await client.get("/v1/models", headers=headers)
    assert answer.status_code == status
    assert status == 200 or answer.json()["error"]["code"] == "foreign_page"
