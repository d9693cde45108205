"""`harmonium keys list` says when a key was used last."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from auth.base import Principal
from parts.usage.allowances import Allowances
from parts.usage.counting.ledger import Ledger
from parts.usage.counting.stored import store_on
from service.__main__ import main
from service.run.database import database_of
from service.settings.settings import load
from tests.service.conftest import NOON


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NIM_CACHE_PATH", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    return tmp_path / "keys.json"


async def use(id: str) -> None:
    database = database_of(load())
    ledger = Ledger(store_on(database), "m", lambda: NOON, Allowances({}), None, counts_all=True)
    for caller in (f"key-{id}", "jwt-00ff"):
        ledger.note_use(Principal(caller))
    await ledger.close()
    await database.close()


def listed(path: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    capsys.readouterr()
    assert main(["keys", "--path", str(path), "list", *more]) == 0
    return capsys.readouterr().out


def test_the_last_use_is_listed_where_usage_is_counted(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("used", "idle"):
        assert main(["keys", "--path", str(path), "create", name]) == 0
    assert "last used" not in listed(path, capsys)
    assert not (tmp_path / "cache" / "responses").exists()  # to ask makes nothing
    ids = {each["name"]: each["id"] for each in json.loads(listed(path, capsys, "--json"))}
    asyncio.run(use(ids["used"]))
    lines = {line.split()[0]: line for line in listed(path, capsys).splitlines()}
    assert "last used 2026-09-21 14:13:20+00:00" in lines[ids["used"]]
    assert "last used never" in lines[ids["idle"]]
    found = {
        each["id"]: each["last_used_at"] for each in json.loads(listed(path, capsys, "--json"))
    }
    assert found == {ids["used"]: "2026-09-21T14:13:20Z", ids["idle"]: None}
