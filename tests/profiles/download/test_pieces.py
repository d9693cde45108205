"""A large file comes in pieces side by side, and what came of each is kept."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from profiles.download import pieces
from profiles.download.pieces import UnfinishedFile, have_bytes
from profiles.download.progress import Stopped
from profiles.errors import DownloadError
from tests.profiles.download.test_download import (
    ARTIFACTS,
    BIG,
    CONTENTS,
    Place,
    bring,
    brisk,
    bucket,
    contents,
    hub,
    mirror,
    ngc,
    place,
)
from tests.profiles.hub import Fault

__all__ = ["brisk", "bucket", "hub", "mirror", "ngc", "place"]  # fixtures

PATIENCE_S = 60
SIZE = len(CONTENTS[BIG])
PIECE = 1 << 20


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(pieces, "_NOTE_EVERY", PIECE // 4)


def asked_of(place: Place) -> list[str | None]:
    return [asked for path, asked in place.served.asked if path.endswith(BIG)]


def ranges() -> set[str]:
    starts = range(0, SIZE, PIECE)
    return {f"bytes={start}-{min(start + PIECE, SIZE) - 1}" for start in starts}


def test_each_piece_is_asked_for_by_its_range(place: Place, tmp_path: Path) -> None:
    bring(place, tmp_path)
    assert contents(tmp_path) == CONTENTS
    assert set(asked_of(place)) == ranges()
    assert sorted(p.name for p in tmp_path.rglob(".*")) == [".verified.json"]


def test_a_cut_piece_goes_on_where_it_was(place: Place, tmp_path: Path) -> None:
    place.served.faults[BIG] = [Fault(cut_after=PIECE // 2)]
    bring(place, tmp_path)
    assert contents(tmp_path) == CONTENTS
    assert len(asked_of(place)) == len(ranges()) + 1


def test_what_came_of_each_piece_is_kept_for_the_next_start(place: Place, tmp_path: Path) -> None:
    [file] = [each for each in ARTIFACTS.files if each.name == BIG]
    part = tmp_path / ".partial" / f"{BIG}.{(file.sha256 or '')[:12]}"

    def until_some_came() -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not have_bytes(part, SIZE) and time.monotonic() < deadline:
            time.sleep(0.01)

    refused = Fault(404, {"X-Error-Code": "EntryNotFound"}, before=until_some_came)
    place.served.faults[BIG] = [Fault(), *[refused] * 9]
    with pytest.raises(DownloadError):
        bring(place, tmp_path)
    assert 0 < have_bytes(part, SIZE) < SIZE
    place.served.faults.clear()
    place.served.asked.clear()
    bring(place, tmp_path)
    assert contents(tmp_path) == CONTENTS
    assert len(asked_of(place)) < len(ranges())


def test_a_source_without_ranges_sends_the_whole_file(place: Place, tmp_path: Path) -> None:
    if place.source.scheme == "s3":
        pytest.skip("every bucket has ranges")
    place.served.has_ranges = False
    bring(place, tmp_path)
    assert contents(tmp_path) == CONTENTS
    assert asked_of(place)[-1] is None


@pytest.mark.parametrize("note", ["", "{}", '{"size": 1, "pieces": [[0, 1, 1]]}'])
def test_a_note_that_cannot_be_right_is_not_believed(
    mirror: Place, tmp_path: Path, note: str
) -> None:
    [file] = [each for each in ARTIFACTS.files if each.name == BIG]
    assert file.sha256 is not None
    part = tmp_path / ".partial" / f"{BIG}.{file.sha256[:12]}"
    part.parent.mkdir()
    part.write_bytes(b"x" * SIZE)
    part.with_name(f"{part.name}.pieces").write_text(note)
    bring(mirror, tmp_path)
    assert contents(tmp_path) == CONTENTS


def test_the_note_never_promises_what_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "part"
    parts = UnfinishedFile(path, 3 * PIECE)
    first, second, third = parts.begin()
    second.write(b"b" * PIECE)
    third.write(b"c" * 10)
    promised = have_bytes(path, 3 * PIECE)  # as a start after a kill would find it
    assert promised <= PIECE + 10
    parts.is_cancelled.set()
    with pytest.raises(Stopped):
        first.write(b"a")
    parts.close()
    assert have_bytes(path, 3 * PIECE) == PIECE + 10
    again = UnfinishedFile(path, 3 * PIECE)
    assert [piece.done for piece in again.pieces] == [0, PIECE, 10]
    assert [piece.start for piece in again.begin()] == [0, 2 * PIECE]
    again.close()
    assert path.read_bytes()[PIECE : 2 * PIECE] == b"b" * PIECE


def test_a_piece_takes_no_byte_beyond_its_end(tmp_path: Path) -> None:
    parts = UnfinishedFile(tmp_path / "part", 2 * PIECE)
    first, second = parts.begin()
    second.write(b"b" * PIECE)
    first.write(b"a" * (PIECE + 5))
    parts.close()
    assert (tmp_path / "part").read_bytes() == b"a" * PIECE + b"b" * PIECE
