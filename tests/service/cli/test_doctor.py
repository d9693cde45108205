"""`harmonium doctor`: what it finds, how it says so, and that it gives away nothing."""

from __future__ import annotations

import json
import os
import re
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from profiles.hardware.machine import Cpu, Hardware
from service.__main__ import main
from service.cli import doctor_checks as checks
from service.settings.settings import load

Doctor = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def cache(nano_cache: Path) -> Path:
    return nano_cache


@pytest.fixture
def doctor(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Doctor:
    """Run it with these variables; gives the exit code and the report."""

    def run(**variables: str) -> tuple[int, dict[str, Any]]:
        given = {"NIM_CACHE_PATH": str(cache), "NIM_SERVER_PORT": "0"} | variables
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        code = main(["doctor", "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


def found(report: dict[str, Any], name: str) -> tuple[str, str]:
    (check,) = [check for check in report["checks"] if check["name"] == name]
    return check["state"], check["detail"]


def test_a_machine_that_can_serve_is_well(doctor: Doctor) -> None:
    code, report = doctor()
    assert code == 0
    assert report["state"] == "ok"
    assert report["versions"]["torch"]
    assert report["versions"]["vllm"] is None
    assert report["hardware"]["cpu"]["num_cores"] >= 1
    assert report["profile"]["engine"] == "native"
    assert len(report["profile"]["id"]) == 64
    assert report["profile"]["runs"].startswith("on ")
    names = ("settings", "port", "cache", "disk", "gpu", "model", "auth", "files")
    assert [check["name"] for check in report["checks"]] == list(names)


def test_secrets_are_neither_in_settings_nor_in_checks(doctor: Doctor) -> None:
    _, report = doctor(
        NIM_API_KEYS="alpha-secret-0123456789",
        NIM_OTEL_EXPORTER_OTLP_ENDPOINT="http://user:gamma-secret@127.0.0.1:1",
        NIM_ENABLE_OTEL="1",
    )
    assert "-secret" not in json.dumps(report)
    assert report["settings"]["NIM_API_KEYS"] == "(set)"
    assert found(report, "collector")[0] == "warning"


def test_what_would_end_a_start_is_a_failure_with_its_remedy(
    doctor: Doctor, tmp_path: Path
) -> None:
    not_a_folder = tmp_path / "file"
    not_a_folder.write_text("")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, report = doctor(
            NIM_SERVER_PORT=str(taken.getsockname()[1]),
            NIM_CACHE_PATH=str(not_a_folder / "cache"),
            NIM_MODEL_PATH=str(tmp_path / "nothing"),
        )
    assert code == 1
    assert report["state"] == "failed"
    for name, remedy in (
        ("port", "NIM_SERVER_PORT"),
        ("cache", "NIM_CACHE_PATH"),
        ("model", "NIM_MODEL_PATH"),
    ):
        state, detail = found(report, name)
        assert state == "failed"
        assert remedy in detail
    assert report["profile"] is None


def test_a_misspelt_setting_is_named(doctor: Doctor) -> None:
    code, report = doctor(NIM_SERVER_PROT="1")
    assert code == 0
    assert found(report, "settings") == (
        "warning",
        "these have no effect: NIM_SERVER_PROT (did you mean NIM_SERVER_PORT?)",
    )


@pytest.mark.parametrize(
    ("variables", "state", "words"),
    [
        ({}, "ok", "open to this machine only"),
        ({"NIM_API_KEYS": "a-key-for-this-test"}, "ok", "callers need a key"),
        ({"NIM_SERVER_HOST": "0.0.0.0"}, "warning", "a key is generated at each start"),
        ({"NIM_SERVER_HOST": "0.0.0.0", "NIM_AUTH": "off"}, "warning", "anyone who can reach"),
        ({"NIM_API_KEYS_PATH": "/nowhere/keys"}, "failed", "/nowhere/keys"),
    ],
)
def test_who_may_call_is_said(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], state: str, words: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    check = checks.auth_state(load())
    assert check.state == state
    assert words in check.detail


def test_certificates_that_cannot_be_read_are_a_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NIM_SSL_MODE", "tls")
    monkeypatch.setenv("NIM_SSL_CERTS_PATH", str(tmp_path / "none.pem"))
    monkeypatch.setenv("NIM_SSL_KEY_PATH", str(tmp_path / "none.key"))
    check = checks.tls_files(load())
    assert check.state == "failed"
    assert "NIM_SSL_" in check.detail


def test_a_gpu_that_cannot_be_used_is_a_warning() -> None:
    cpu = Cpu("cpu", 1, 1, 1)
    hardware = Hardware(cpu, no_gpu_reason="none", warnings=("GPU 0 has fallen off the bus",))
    assert checks.gpu_driver(hardware).state == "warning"


def test_the_text_has_every_section_and_hides_what_is_not_set(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NIM_CACHE_PATH", str(cache))
    monkeypatch.setenv("NIM_SERVER_PORT", "0")
    monkeypatch.setenv("NIM_API_KEYS", "alpha-secret-0123456789")
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    for section in ("VERSIONS", "HARDWARE", "PROFILE", "SETTINGS", "CHECKS"):
        assert section in text
    assert "NIM_API_KEYS" in text
    assert "alpha-secret-0123456789" not in text
    assert "NIM_LOG_LEVEL" not in text
    assert re.search(r"^  notes +(?!\[)\w", text, re.M)  # sentences, or that there are none


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may open: pytest's own lie below one that others may not."""
    with tempfile.TemporaryDirectory(prefix="harmonium-") as folder:
        yield Path(folder)


def test_folders_of_another_user_in_the_cache_are_told(open_folder: Path) -> None:
    (open_folder / "models").mkdir()
    assert checks.cache_writable(open_folder).state == "ok"
    was = os.geteuid()
    (open_folder / "models").chmod(0o555)
    (open_folder / "theirs").mkdir(mode=0)
    if was == 0:
        open_folder.chmod(0o777)
        os.seteuid(65534)
    try:
        found = checks.cache_writable(open_folder)
    finally:
        os.seteuid(was)
    assert found.state == "warning"
    assert "models, theirs" in found.detail


def test_a_cache_behind_a_closed_folder_is_told(closed_folder: Path) -> None:
    found = checks.cache_writable(closed_folder / "cache")
    assert found.state == "failed"
    assert "Permission denied" in found.detail
    assert checks.disk_free(closed_folder / "cache").state in ("ok", "warning")
