"""A model is fetched by one at a time; whoever dies meanwhile keeps nobody from it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from profiles.download import fetch as fetching
from profiles.volume import lease
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

__all__ = ["brisk", "bucket", "hub", "mirror", "ngc", "place"]


def test_two_at_once_fetch_once(place: Place, tmp_path: Path) -> None:
    is_asked, may_go = threading.Event(), threading.Event()

    def hold() -> None:
        is_asked.set()
        may_go.wait(60)

    place.served.faults[BIG] = [Fault(before=hold)]
    first = threading.Thread(target=bring, args=(place, tmp_path))
    second = threading.Thread(target=bring, args=(place, tmp_path))
    first.start()
    assert is_asked.wait(60)
    second.start()
    may_go.set()
    first.join()
    second.join()
    assert contents(tmp_path) == CONTENTS
    assert len(place.served.asked) == len(CONTENTS)


OTHER_PROCESS = """
import sys
from pathlib import Path
from profiles.download.fetch import fetch
from profiles.download.source import source_of
from profiles.catalogue.models import Artifacts
artifacts = Artifacts.model_validate_json(sys.argv[1])
fetch("gpt-oss-20b", artifacts.files, Path(sys.argv[2]), source_of(artifacts, sys.argv[3]))
"""


@pytest.mark.heavy
def test_who_is_killed_half_way_leaves_no_lock_and_what_came(mirror: Place, tmp_path: Path) -> None:
    is_sent, may_go = threading.Event(), threading.Event()

    def hold() -> None:
        is_sent.set()
        may_go.wait(60)

    mirror.served.faults[BIG] = [Fault(cut_after=2 << 20), Fault(before=hold)]
    base = f"{mirror.served.url}/models"
    command = [
        sys.executable,
        "-c",
        OTHER_PROCESS,
        ARTIFACTS.model_dump_json(),
        str(tmp_path),
        base,
    ]
    with subprocess.Popen(command) as process:
        assert is_sent.wait(60)  # it has two megabytes and asks for the rest
        process.send_signal(signal.SIGKILL)
    may_go.set()
    mirror.served.asked.clear()
    bring(mirror, tmp_path)  # a dead owner on this host is known to be dead at once
    assert contents(tmp_path) == CONTENTS
    (asked,) = [asked for path, asked in mirror.served.asked if path.endswith(BIG)]
    assert asked is not None


def test_who_was_killed_while_hashing_has_all_bytes(place: Place, tmp_path: Path) -> None:
    (file,) = [file for file in ARTIFACTS.files if file.name == BIG]
    part = fetching._part(tmp_path, file)
    part.parent.mkdir()
    part.write_bytes(CONTENTS[BIG])
    bring(place, tmp_path)
    assert contents(tmp_path) == CONTENTS
    assert not any(BIG in path for path, _ in place.served.asked)


def test_an_owner_on_another_host_is_waited_for_until_its_lease_runs_out(
    mirror: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lease, "LEASE_S", 2.0)
    monkeypatch.setattr(lease, "_WAIT_TOLD_EVERY_S", 0.5)
    with fetching._owned(tmp_path / "m", "gpt-oss-20b"):
        record = (tmp_path / ".m.lease").read_text()
    host = os.uname().nodename
    assert host in record
    (tmp_path / ".m.lease").write_text(record.replace(host, "pod-1"))
    with caplog.at_level("INFO"):
        bring(mirror, tmp_path / "m")
    assert contents(tmp_path / "m") == CONTENTS
    assert "Another process fetches gpt-oss-20b" in caplog.text
