"""Parts are whole or not there, used while they fit, and made by one process at a time."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from engines.native.artefact.store import (
    MANIFEST,
    Damaged,
    NotKept,
    Part,
    Recipe,
    Store,
    StoredPart,
)
from profiles.volume import locks

FITS = Part("part", {"torch": "2.11", "sizes": (1, 2)})


def recipe(content: str = "content", made: list[str] | None = None, size: int = 100) -> Recipe:
    def write(folder: Path) -> dict[str, str]:
        (folder / "data").write_text(content)
        if made is not None:
            made.append(content)
        return {"data": content}

    return Recipe(size, write)


def read(found: StoredPart) -> str:
    content = (found.folder / "data").read_text()
    if content != found.checksums["data"]:
        raise Damaged("data has another checksum")
    return content


def test_a_part_is_made_once(tmp_path: Path) -> None:
    made: list[str] = []
    for _ in range(2):
        assert Store(tmp_path / "store").use(FITS, recipe(made=made), read) == "content"
    assert made == ["content"]


@pytest.mark.parametrize(
    ("identity", "said"),
    [
        ({"torch": "2.12", "sizes": [1, 2]}, "was made for torch 2.11, not 2.12"),
        ({"torch": "2.11", "sizes": [1, 2], "gpu": 9}, "was made for gpu None, not 9"),
        ({"torch": "2.11"}, "was made for ['sizes'] too"),
    ],
)
def test_a_stale_part_is_made_anew_and_the_old_one_is_gone(
    tmp_path: Path, identity: dict[str, object], said: str
) -> None:
    store, wanted = Store(tmp_path), Part("part", identity)
    store.use(FITS, recipe("old"), read)
    assert store.slot(wanted).why_not() == said
    assert store.use(wanted, recipe("new"), read) == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".part.lock", "part"]


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda folder: (folder / "data").write_text("c"), "has data with 1 bytes"),
        (lambda folder: (folder / "data").unlink(), "lacks data"),
        (lambda folder: (folder / MANIFEST).unlink(), "lacks manifest.json"),
        (lambda folder: (folder / MANIFEST).write_text("{"), "cannot be read"),
        (lambda folder: (folder / MANIFEST).write_text("[]"), "cannot be read"),
        (lambda folder: (folder / "data").write_text("cOntent"), None),  # its reader sees it
    ],
)
def test_what_is_not_as_it_was_made_is_made_anew(
    tmp_path: Path, harm: Callable[[Path], object], said: str | None
) -> None:
    store, made = Store(tmp_path), list[str]()
    store.use(FITS, recipe(made=made), read)
    harm(tmp_path / "part")
    found = store.slot(FITS).why_not()
    assert found is None if said is None else said in str(found)
    assert store.use(FITS, recipe(made=made), read) == "content"
    assert len(made) == 2


def test_a_part_that_is_damaged_as_soon_as_it_is_made_is_not_used(tmp_path: Path) -> None:
    def is_never_right(found: StoredPart) -> str:
        raise Damaged("always")

    with pytest.raises(NotKept, match="damaged repeatedly"):
        Store(tmp_path).use(FITS, recipe(), is_never_right)


def test_without_room_nothing_is_begun(tmp_path: Path) -> None:
    with pytest.raises(NotKept, match=r"needs 1000000000000.07 GB and [0-9.]+ GB are free"):
        Store(tmp_path).use(FITS, recipe(size=10**21), read)
    assert [path.name for path in tmp_path.iterdir()] == [".part.lock"]


def test_a_disk_that_fills_up_leaves_nothing_behind(tmp_path: Path) -> None:
    def write(folder: Path) -> dict[str, str]:
        (folder / "data").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(NotKept, match="No space left on device"):
        Store(tmp_path).use(FITS, Recipe(1, write), read)
    assert [path.name for path in tmp_path.iterdir()] == [".part.lock"]


def test_where_nothing_can_be_written_the_reason_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotKept, match="cannot be written: Not a directory"):
        Store(tmp_path / "file" / "store").use(FITS, recipe(), read)


def test_what_is_there_is_used_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store(tmp_path).use(FITS, recipe(), read)
    (tmp_path / ".part.lock").unlink()
    (tmp_path / ".part.lock").mkdir()  # cannot be opened to write, whoever asks
    assert Store(tmp_path).use(FITS, recipe(), read) == "content"


def make_and_die(folder: Path) -> None:
    def write(target: Path) -> dict[str, str]:
        (target / "data").write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)
        return {}

    Store(folder).use(FITS, Recipe(1, write), read)


@pytest.mark.heavy
def test_a_maker_killed_half_way_leaves_no_part_and_no_lock(tmp_path: Path) -> None:
    maker = multiprocessing.get_context("spawn").Process(target=make_and_die, args=(tmp_path,))
    maker.start()
    maker.join()
    assert maker.exitcode == -signal.SIGKILL
    assert not (tmp_path / "part").exists()
    assert len(list(tmp_path.glob(".part.*/"))) == 1  # what it left
    assert Store(tmp_path).use(FITS, recipe(), read) == "content"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".part.lock", "part"]


def test_of_two_makers_one_waits_and_uses_what_the_other_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each locks a file of its own, as two processes do."""
    has_begun, may_end, waits = threading.Event(), threading.Event(), threading.Event()

    def write(target: Path) -> dict[str, str]:
        has_begun.set()
        assert may_end.wait(60)
        (target / "data").write_text("theirs")
        return {"data": "theirs"}

    wait_for = locks._wait_for

    def tell_and_wait(*args: object) -> bool:
        waits.set()
        return wait_for(*args)  # type: ignore[arg-type]

    got: list[str] = []

    def use(made: Recipe) -> threading.Thread:
        return threading.Thread(target=lambda: got.append(Store(tmp_path).use(FITS, made, read)))

    other, us = use(Recipe(1, write)), use(recipe("ours"))
    other.start()
    assert has_begun.wait(60)
    monkeypatch.setattr(locks, "_wait_for", tell_and_wait)
    us.start()
    assert waits.wait(60)
    may_end.set()
    for maker in (other, us):
        maker.join(60)
    assert got == ["theirs", "theirs"]


def test_a_part_is_not_replaced_while_it_is_read(tmp_path: Path) -> None:
    store, newer = Store(tmp_path), Part("part", {"torch": "2.12"})
    store.use(FITS, recipe("old"), read)
    maker = threading.Thread(target=lambda: store.use(newer, recipe("new"), read))

    def read_slowly(found: StoredPart) -> str:
        maker.start()
        maker.join(0.2)  # it would be done by then
        return read(found)

    assert store.use(FITS, recipe(), read_slowly) == "old"
    maker.join(60)
    manifest = json.loads((tmp_path / "part" / MANIFEST).read_text())
    assert manifest["identity"] == {"torch": "2.12"}
