"""Who gets in where nothing is configured."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from auth.address import is_loopback
from service.first_key import tell_access, with_made_key
from service.settings import SettingsError, load


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_is_open(host: str) -> None:
    settings = load({"server_host": host})
    assert with_made_key(settings) is settings
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com", "127.1"])
def test_elsewhere_a_key_is_made_and_told_once(
    host: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    configured = load({"server_host": host})
    keys = [with_made_key(configured).api_key_list for _ in range(2)]
    assert keys[0] != keys[1]
    settings = with_made_key(configured)
    tell_access(settings, is_made=True)
    [key] = settings.api_key_list
    assert capsys.readouterr().out.count(key) == 1
    assert key not in caplog.text
    assert "NIM_AUTH=off" in caplog.text


def test_none_is_made_where_keys_are_configured() -> None:
    settings = load({"server_host": "0.0.0.0", "api_keys": SecretStr("one-configured-key")})
    assert with_made_key(settings) is settings


def test_off_must_be_said_and_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    settings = load({"server_host": "0.0.0.0", "auth": "off"})
    assert with_made_key(settings) is settings
    tell_access(settings, is_made=False)
    assert "whoever reaches 0.0.0.0" in caplog.text


def test_off_and_keys_contradict_each_other() -> None:
    with pytest.raises(SettingsError, match=r"NIM_AUTH .*NIM_API_KEYS"):
        load({"auth": "off", "api_keys": SecretStr("one-configured-key")})


def test_the_made_key_opens_and_stands_on_standard_output_alone(
    serve: Callable[..., Any],
) -> None:
    server = serve("--server-host=0.0.0.0")
    url = f"{server.url}/v1/models"
    [line] = [line for line in server.out if "hmk_" in line]
    key = line.split()[-1]
    assert httpx.get(url, timeout=30).status_code == 401
    assert httpx.get(url, headers={"X-API-Key": key}, timeout=30).status_code == 200
    assert server.end() == 0
    assert not any(key in line for line in server.log)


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
