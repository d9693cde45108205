"""`harmonium keys`: what people see of keys, and what they never see."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from service.__main__ import main

CreateKey = Callable[..., str]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def test_keys_are_listed_by_id_name_and_state(
    create_key: CreateKey, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = [create_key(path, name="Ann's laptop"), create_key(path, "--expires-in=90d", name="ci")]
    assert main(["keys", "--path", str(path), "revoke", keys[0].split("_")[1]]) == 0
    capsys.readouterr()
    assert main(["keys", "--path", str(path), "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(key.split("_")[1] in line for key, line in zip(keys, lines, strict=True))
    assert "revoked" in lines[0]
    assert "Ann's laptop" in lines[0]
    assert "active" in lines[1]


def test_a_listing_has_neither_keys_nor_hashes(
    create_key: CreateKey, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = create_key(path)
    sha256 = json.loads(path.read_text())["keys"][0]["sha256"]
    assert main(["keys", "--path", str(path), "list", "--json"]) == 0
    out = capsys.readouterr().out
    assert json.loads(out)[0]["state"] == "active"
    assert sha256 not in out
    assert key.split("_", 2)[2] not in out


def test_what_is_done_to_keys_is_audited_without_them(
    create_key: CreateKey, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    id, secret = create_key(path).split("_", 2)[1:]
    assert main(["keys", "--path", str(path), "create", "evil\tname=x"]) == 1
    assert main(["keys", "--path", str(path), "revoke", id]) == 0
    log = capsys.readouterr().err
    assert f"key.revoked key={id} name=ci" in log
    assert "scopes=inference,models" in log
    assert secret not in log


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["a\nb"], "$.name"),
        (["x", "--tenant=a\tb"], "$.tenant"),
        (["x", "--models=\x01"], "$.models[0]"),
    ],
)
def test_control_characters_are_refused_in_words(
    path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], field: str
) -> None:
    assert main(["keys", "--path", str(path), "create", *arguments]) == 1
    error = capsys.readouterr().err
    assert "without control characters, such as line breaks and tabs" in error
    assert field in error
    assert not path.exists()


def test_the_path_is_a_setting(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keys", "list"]) == 2
    assert "NIM_API_KEYS_PATH" in capsys.readouterr().err
    monkeypatch.setenv("NIM_API_KEYS_PATH", str(path))
    assert main(["keys", "create", "ci"]) == 0
    assert path.exists()


def test_the_path_may_stand_last_and_help_needs_none(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keys", "create", "ci", "--path", str(path)]) == 0
    assert path.exists()
    assert main(["keys", "create", "--help"]) == 0
    assert "--expires-in" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["revoke", "0" * 12], 1, "0" * 12),
        (["create", "n", "--tokens-per-min=0"], 2, "--tokens-per-min"),
        (["create", "n", "--budget-tokens=none"], 2, "--budget-tokens"),
        (["create", ""], 1, "name"),
        (["create", "n", "--tenant=key-2a68c710"], 2, "looks like a caller's id"),
        (["create", "n", "--scopes=root"], 2, "root"),
        (["create", "n", "--expires-in=tomorrow"], 2, "90d"),
    ],
)
def test_bad_arguments_are_named_and_change_nothing(
    path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, named: str
) -> None:
    assert main(["keys", "--path", str(path), *arguments]) == code
    assert named in capsys.readouterr().err
    assert not path.exists()


def test_keys_made_at_once_are_all_kept(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = [
        threading.Thread(target=main, args=(["keys", "--path", str(path), "create", f"t{n}"],))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = {key["name"] for key in json.loads(path.read_text())["keys"]}
    assert names == {f"t{n}" for n in range(8)}
    assert not list(path.parent.glob(".keys-*"))
