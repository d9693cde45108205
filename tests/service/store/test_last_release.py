"""Release 0.2.0 reads what this one writes, and the other way round: keys and stored responses.

Its own code does it, from git.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from auth.base import Scope
from auth.key_record import KeyFile, KeyLimits, KeyRecord, decode, new_key, now
from tests.needs import needs

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[3]
COMMIT = "6d126d51d95f5f457962ffadafde1ce557e287e1"
READ_KEYS = """
import sys
from auth.key_record import decode
print(decode(sys.stdin.buffer.read()).encode().decode())
"""
# Writes three responses, and reads those whose ids it is given.
USE_RESPONSES = """
import asyncio, json, sys
from dataclasses import asdict
from pathlib import Path
from service.store.base import ResponseRecord
place, ids = sys.argv[1], sys.argv[2:]

async def use():
    if place.startswith("unix:"):
        from service.store.redis import RedisStore
        store = RedisStore(place)
    else:
        from service.store.sqlite import SqliteStore
        store = SqliteStore(Path(place))
    for id in ids:
        found = asdict(await store.get(id, "ann")) | {"pieces": await store.pieces(id)}
        found["history"] = [each.id for each in await store.history(id, "ann")]
        del found["idle_s"], found["beat_at"]
        print(json.dumps({name: of if not isinstance(of, bytes) else of.decode()
            for name, of in found.items()}, default=bytes.decode))
    if not ids:
        await store.put(ResponseRecord("resp_1", "ann", b"{}", b"[1]"), b"one")
        second = ResponseRecord("resp_2", "ann", b"{}", b"[2]", previous_id="resp_1")
        await store.put(second, b"two")
        await store.put(ResponseRecord("resp_3", "ann", b"{}", b"[3]", is_final=False))
        await store.extend("resp_3", b"three")
        await store.finish("resp_3", b'{"done":1}')
    await store.close()

asyncio.run(use())
"""


@pytest.fixture(scope="session")
def old_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    command = ["git", "archive", COMMIT, "auth", "service/__init__.py", "service/store"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"git lacks the commit of release 0.2.0, {COMMIT}")
    folder = tmp_path_factory.mktemp("release")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as packed:
        packed.extractall(folder, filter="data")
    return folder


def run_old(old_code: Path, program: str, *arguments: str, given: bytes = b"") -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        input=given,
        capture_output=True,
        cwd=old_code,
        env={**os.environ, "PYTHONPATH": str(old_code)},
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def record(**more: Any) -> KeyRecord:
    return KeyRecord(id=new_key()[1], name="n", sha256="0" * 64, created_at=now(), **more)


def test_the_last_release_reads_keys_without_budgets_and_this_one_reads_its(old_code: Path) -> None:
    limits = KeyLimits(requests_per_min=5, tokens_per_min=9, max_concurrent=2)
    scopes = frozenset({Scope.ADMIN, Scope.INFERENCE, Scope.METRICS, Scope.MODELS})
    full = record(
        expires_at=now(), revoked_at=now(), scopes=scopes, models=("m",), tenant="t", limits=limits
    )
    keys = KeyFile((record(), full))
    assert decode(run_old(old_code, READ_KEYS, given=keys.encode()).encode()) == keys


@needs("responses")
async def test_both_read_each_others_responses_in_a_file(old_code: Path, tmp_path: Path) -> None:
    from parts.responses.store.sqlite import SqliteStore
    from service.store.sqlite import SqliteDatabase

    path = tmp_path / "responses.sqlite"
    await _both_ways(old_code, str(path), lambda: SqliteStore(SqliteDatabase(path)))


@needs("responses", "redis")
async def test_both_read_each_others_responses_in_a_redis(old_code: Path, redis_url: str) -> None:
    from parts.responses.store.redis import RedisStore
    from tests.service.conftest import open_redis

    await _both_ways(old_code, redis_url, lambda: RedisStore(open_redis(redis_url)))


async def _both_ways(old_code: Path, place: str, open_store: Any) -> None:
    from parts.responses.store.base import ResponseRecord

    run_old(old_code, USE_RESPONSES, place)
    store = open_store()
    found = [await store.get(f"resp_{number}", "ann") for number in (1, 2, 3)]
    assert [each.previous_id for each in found] == [None, "resp_1", None]
    assert [(each.response, each.is_final) for each in found][2] == (b'{"done":1}', True)
    assert [await store.pieces(each.id) for each in found] == [[b"one"], [b"two"], [b"three"]]
    await store.put(ResponseRecord("resp_4", "ann", b'{"4":4}', b"[4]", previous_id="resp_2"))
    await store.put(ResponseRecord("resp_5", "ann", b"{}", b"[5]", is_final=False))
    await store.extend("resp_5", b"5", b"\1\0\0\0", 7)
    await store.finish("resp_5", b'{"5":5}', b"6", 7)
    await store.database.close()

    lines = run_old(old_code, USE_RESPONSES, place, *(f"resp_{n}" for n in range(1, 6)))
    read = {each["id"]: each for each in map(json.loads, lines.splitlines())}
    assert read["resp_4"]["history"] == ["resp_1", "resp_2", "resp_4"]
    assert read["resp_4"]["response"] == '{"4":4}'
    assert (read["resp_5"]["response"], read["resp_5"]["is_final"]) == ('{"5":5}', True)
    assert "".join(read["resp_5"]["pieces"]) == "56"
    store = open_store()
    again = [asdict(await store.get(f"resp_{number}", "ann")) for number in (1, 2, 3)]
    assert again == [asdict(each) for each in found]
    await store.database.close()
