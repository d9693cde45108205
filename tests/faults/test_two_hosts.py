"""Two servers that share a cache as two hosts do: each answer that was called stored is there."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.needs import needs
from tests.two_hosts import as_second_host, with_own_mounts

pytestmark = [pytest.mark.faults, needs("responses")]

EACH = 25


@pytest.fixture
def temporary() -> Iterator[Path]:
    """TMPDIR of both: short, for sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="two-") as folder:
        yield Path(folder)


@pytest.mark.parametrize("has_own_index", [True, False])
def test_fifty_of_fifty_stored_responses_are_there(
    serve: Any, tmp_path: Path, temporary: Path, has_own_index: bool
) -> None:
    cache = tmp_path / "cache"
    file = cache / "responses" / "responses.sqlite"
    log = tmp_path / "second.log"
    first = serve(TMPDIR=str(temporary))
    begun = first.post("/v1/responses", input="Hi").json()
    assert begun["store"] is True
    prefix = as_second_host(file, tmp_path / "own-shm") if has_own_index else with_own_mounts()
    second = serve(log=log, prefix=prefix, TMPDIR=str(temporary))
    told = {first: [begun["id"]], second: list[str]()}
    for number in range(EACH):
        for server, ids in told.items():
            answer = server.post("/v1/responses", input=f"Hi {number}").json()
            assert answer["store"] is True
            ids.append(answer["id"])
    for server, ids in told.items():
        for id in ids:
            assert server.client.get(f"/v1/responses/{id}").status_code == 200
    assert [server.interrupt() for server in told] == [0, 0]
    files = [file, *temporary.glob("harmonium-*/responses-*/responses.sqlite")]
    assert len(files) == (2 if has_own_index else 1)
    kept = set[str]()
    for path in files:
        with sqlite3.connect(path) as opened:
            assert opened.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            kept |= {id for (id,) in opened.execute("SELECT id FROM responses")}
    assert kept == {id for ids in told.values() for id in ids}
    assert log.read_text().count("is open on another host") == int(has_own_index)

    again = serve(TMPDIR=str(temporary))
    for id in told[first]:
        assert again.client.get(f"/v1/responses/{id}").status_code == 200


def test_a_named_file_that_another_host_has_open_ends_the_start(
    serve: Any, tmp_path: Path, temporary: Path
) -> None:
    file = tmp_path / "responses.sqlite"
    named = {"NIM_RESPONSES_PATH": str(file), "TMPDIR": str(temporary)}
    first = serve(**named)
    assert first.post("/v1/responses", input="Hi").json()["store"] is True
    log = tmp_path / "second.log"
    with pytest.raises(AssertionError):
        serve(log=log, prefix=as_second_host(file, tmp_path / "own-shm"), **named)
    text = log.read_text()
    assert f"NIM_RESPONSES_PATH is {file}: {file} is open on another host" in text
    assert "or set NIM_REDIS_URL to share responses" in text
    assert first.post("/v1/responses", input="Hi").json()["store"] is True
