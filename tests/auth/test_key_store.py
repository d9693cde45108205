"""Keys under a path: who gets in, and how soon a change counts."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from auth.base import Credentials, InvalidCredentials, Principal, PrincipalLimits, Scope
from auth.key_folder import KeyFolder, KeyStoreError
from auth.key_store import KeyStore
from service.__main__ import main

CreateKey = Callable[..., str]


@pytest.fixture(params=["file", "folder"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "file":
        return tmp_path / "keys.json"
    (tmp_path / "keys").mkdir()
    return tmp_path / "keys"


def opened(path: Path, **options: Any) -> KeyStore:
    store = KeyStore(path, **{"check_every_s": 0.0} | options)
    store.load()
    return store


async def principal_of(store: KeyStore, key: str, scheme: str = "bearer") -> Principal:
    principal = await store.authenticate(Credentials(scheme, key))
    assert principal is not None
    return principal


@pytest.mark.parametrize("scheme", ["bearer", "x-api-key"])
async def test_a_made_key_opens_with_what_was_given_to_it(
    create_key: CreateKey, path: Path, scheme: str
) -> None:
    options = ("--scopes=metrics", "--models=a,b", "--tenant=t1", "--tokens-per-min=900")
    key = create_key(path, *options)
    principal = await principal_of(opened(path), key, scheme)
    assert principal == Principal(
        id=f"key-{key.split('_')[1]}",
        tenant_id="t1",
        scopes=frozenset({Scope.METRICS}),
        models=("a", "b"),
        limits=PrincipalLimits(tokens_per_min=900),
    )


async def test_a_plain_key_is_its_own_tenant_and_no_admin(
    create_key: CreateKey, path: Path
) -> None:
    store_keys = [create_key(path), create_key(path)]
    first, second = [await principal_of(opened(path), key) for key in store_keys]
    assert first.tenant_id != second.tenant_id
    assert first.scopes == {Scope.INFERENCE, Scope.MODELS}


async def test_neither_a_guess_nor_the_hash_opens(create_key: CreateKey, path: Path) -> None:
    key = create_key(path)
    [file] = path.glob("*.json") if path.is_dir() else [path]
    sha256 = json.loads(file.read_text())["keys"][0]["sha256"]
    store = opened(path)
    other = "A" if key[-1] != "A" else "B"
    for wrong in (key[:-1] + other, f"hmk_{key.split('_')[1]}_{sha256[:43]}", "hmk_" + "0" * 12):
        if await is_taken(store, wrong):
            pytest.fail(f"{wrong} opened")


async def is_taken(store: KeyStore, key: str) -> bool:
    try:
        return await store.authenticate(Credentials("bearer", key)) is not None
    except InvalidCredentials:
        return False


async def test_only_the_hash_is_kept_and_only_for_its_owner(
    create_key: CreateKey, path: Path
) -> None:
    key = create_key(path)
    files = list(path.glob("*.json")) if path.is_dir() else [path]
    assert len(files) == 1
    assert key.split("_", 2)[2] not in files[0].read_text()
    assert files[0].stat().st_mode & 0o077 == 0
    assert key.split("_", 2)[2] not in repr(vars(opened(path)))


async def test_a_key_made_while_serving_opens_and_a_revoked_one_closes(
    create_key: CreateKey, path: Path
) -> None:
    first = create_key(path)
    store = opened(path)
    second = create_key(path)
    assert await is_taken(store, second)
    assert main(["keys", "--path", str(path), "revoke", first.split("_")[1]]) == 0
    with pytest.raises(InvalidCredentials, match="revoked"):
        await store.authenticate(Credentials("bearer", first))
    assert await is_taken(store, second)


async def test_a_secret_that_kubernetes_swaps_is_followed(
    create_key: CreateKey, tmp_path: Path
) -> None:
    """As the kubelet does: files are links through `..data`, which is replaced at once."""
    keys = [create_key(tmp_path / f"{name}.json") for name in ("old", "new")]
    mount = tmp_path / "mount"
    mount.mkdir()
    for name in ("old", "new"):
        (mount / f"..{name}").mkdir()
        (tmp_path / f"{name}.json").rename(mount / f"..{name}" / "keys.json")
    (mount / "..data").symlink_to("..old")
    (mount / "keys.json").symlink_to("..data/keys.json")
    store = opened(mount)
    assert [await is_taken(store, key) for key in keys] == [True, False]
    (mount / "..next").symlink_to("..new")
    (mount / "..next").rename(mount / "..data")
    assert [await is_taken(store, key) for key in keys] == [False, True]


async def test_a_key_ends_at_its_hour(create_key: CreateKey, path: Path) -> None:
    key = create_key(path, "--expires-in=12h")
    now = datetime.now(UTC)
    before = opened(path, clock=lambda: now + timedelta(hours=11, minutes=59))
    after = opened(path, clock=lambda: now + timedelta(hours=12))
    assert await is_taken(before, key)
    with pytest.raises(InvalidCredentials, match="expired"):
        await after.authenticate(Credentials("bearer", key))


async def test_a_broken_file_leaves_the_keys_as_they_were_and_is_told_once(
    create_key: CreateKey, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys.json"
    key = create_key(path)
    store = opened(path)
    path.write_text("{")
    assert [await is_taken(store, key) for _ in range(3)] == [True] * 3
    [line] = [line for line in capsys.readouterr().err.splitlines() if "ERROR" in line]
    assert str(path) in line


@pytest.mark.parametrize("is_folder", [False, True])
async def test_a_pipe_in_a_files_place_is_not_waited_for(
    create_key: CreateKey, tmp_path: Path, caplog: pytest.LogCaptureFixture, is_folder: bool
) -> None:
    path = tmp_path / "keys.json"
    key = create_key(path)
    logging.getLogger().addHandler(caplog.handler)  # the command has configured logging
    store = opened(tmp_path if is_folder else path)
    path.unlink()
    os.mkfifo(path)
    async with asyncio.timeout(60):
        assert await is_taken(store, key)
    assert "keys.json is not a file" in caplog.text
    with pytest.raises(KeyStoreError, match="is not a file"):
        opened(path)


async def test_a_file_system_that_hangs_holds_one_request_for_a_moment(
    create_key: CreateKey,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = tmp_path / "keys.json"
    keys = [create_key(path), create_key(path)]
    logging.getLogger().addHandler(caplog.handler)
    store = opened(path, patience_s=0.1)
    answers = threading.Event()
    monkeypatch.setattr(KeyFolder, "signature", lambda _folder: answers.wait(30) and ())
    async with asyncio.timeout(60):
        for key in keys * 200:  # which would take 40 s if each of them waited
            assert await is_taken(store, key)
        assert not await is_taken(store, f"{keys[0][:-1]}{'a' if keys[0][-1] != 'a' else 'b'}")
    assert caplog.text.count("was not read in 0.1 s") == 1
    monkeypatch.undo()
    assert main(["keys", "--path", str(path), "revoke", keys[0].split("_")[1]]) == 0
    answers.set()
    async with asyncio.timeout(60):
        while await is_taken(store, keys[0]):
            await asyncio.sleep(0.01)
    assert await is_taken(store, keys[1])


@pytest.mark.heavy
def test_a_process_ends_although_its_files_hang(tmp_path: Path) -> None:
    """asyncio's own threads would be waited for."""
    program = """
import asyncio, threading
from auth.detached_thread import run_detached
async def main():
    try:
        await asyncio.wait_for(run_detached(lambda: threading.Event().wait(60)), 0.1)
    except TimeoutError:
        print("ended")
asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")


async def test_keys_that_are_gone_open_nothing(create_key: CreateKey, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key = create_key(path)
    store = opened(path)
    path.unlink()
    assert not await is_taken(store, key)


@pytest.mark.parametrize("value", ["sk-other", "a.b.c", "", "hmk_x", "hmk_" + "0" * 56])
async def test_what_is_no_made_key_is_left_to_others(
    create_key: CreateKey, path: Path, value: str
) -> None:
    create_key(path)
    assert await opened(path).authenticate(Credentials("bearer", value)) is None


GOOD = {"id": "0" * 12, "name": "n", "sha256": "0" * 64, "created_at": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"sha256": "plain-text-key"}, "sha256"),
        ({"scopes": ["root"]}, "scopes"),
        ({"limits": {"request_per_min": 1}}, "request_per_min"),
        ({"limits": {"tokens_per_min": 0}}, "tokens_per_min"),
        ({"expires": "2026-01-01T00:00:00Z"}, "expires"),
        ({"expires_at": "2026-01-01T00:00:00"}, "expires_at"),
        ({"name": "two\nlines"}, "name"),
    ],
)
def test_a_record_that_says_what_we_do_not_know_is_refused(
    tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": [GOOD | change]}))
    with pytest.raises(KeyStoreError, match=named) as caught:
        opened(path)
    assert "plain-text-key" not in str(caught.value)


def test_two_records_of_one_id_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": [GOOD, GOOD]}))
    with pytest.raises(KeyStoreError, match="twice"):
        opened(path)


def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeyStoreError, match=r"none\.json.*harmonium keys create"):
        opened(tmp_path / "none.json")


async def test_a_rotated_key_has_the_rights_and_the_tenant_of_the_old_which_ends(
    create_key: CreateKey, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = create_key(path, "--scopes=inference", "--tokens-per-min=7")
    keys = ["keys", "--path", str(path)]
    assert main([*keys, "rotate", old.split("_")[1], "--overlap=7d"]) == 0
    new = capsys.readouterr().out.strip()
    assert main([*keys, "set", new.split("_")[1], "--requests-per-min=5"]) == 0
    before, after = [await principal_of(opened(path), key) for key in (old, new)]
    assert after.id != before.id
    assert after.tenant_id == before.tenant_id == before.id
    assert after.scopes == before.scopes
    assert before.limits == PrincipalLimits(tokens_per_min=7)
    assert after.limits == PrincipalLimits(requests_per_min=5, tokens_per_min=7)
    store = opened(path, clock=lambda: datetime.now(UTC) + timedelta(days=8))
    with pytest.raises(InvalidCredentials, match="expired"):
        await principal_of(store, old)
    assert (await principal_of(store, new)).id == after.id
    assert main([*keys, "set", new.split("_")[1]]) == 2, "no limit was named"


async def test_limits_of_a_key_are_removed_by_name(create_key: CreateKey, path: Path) -> None:
    key = create_key(path, "--tokens-per-min=7", "--budget-tokens=9", "--budget-period=day")
    change = ["keys", "--path", str(path), "set", key.split("_")[1]]
    assert main([*change, "--budget-tokens=none", "--budget-period=day"]) == 0
    assert (await principal_of(opened(path), key)).limits == PrincipalLimits(tokens_per_min=7)
    assert main([*change, "--tokens-per-min=none"]) == 0
    assert (await principal_of(opened(path), key)).limits is None


def test_expiries_are_those_of_keys_that_nothing_replaced(
    create_key: CreateKey, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("rotated", "revoked", "kept"):
        create_key(path, "--expires-in=12h", name=name)
    create_key(path, name="endless")
    ids = {record.name: id for id, record in KeyFolder(path).read().items()}
    long_ago = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
    folder = KeyFolder(path)
    folder.replace(replace(folder.read()[ids["rotated"]], created_at=long_ago))
    assert main(["keys", "--path", str(path), "rotate", ids["rotated"], "--overlap", "1h"]) == 0
    assert main(["keys", "--path", str(path), "revoke", ids["revoked"]]) == 0
    new = next(id for id, each in folder.read().items() if each.replaces == ids["rotated"])
    expiries = opened(path).expiries()
    assert set(expiries) == {ids["kept"], new}
    expires_at = folder.read()[ids["kept"]].expires_at
    assert expires_at is not None
    assert expiries[ids["kept"]] == expires_at.timestamp()
