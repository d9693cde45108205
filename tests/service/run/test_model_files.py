"""Which files a start takes, and where it fetches what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from profiles.catalogue import catalogue
from profiles.catalogue.models import ArtifactFile
from profiles.hardware.machine import GB
from profiles.store import store
from service.run.startup import obtain, prepare, tell
from service.settings.settings import load
from tests.profiles.hub import serving
from tests.profiles.store.test_store import shard
from tests.service.run.conftest import launch

pytestmark = pytest.mark.usefixtures("machine", "cache")


def own_folder(folder: Path, model: str) -> None:
    """A checkpoint's config.json, which is all that deciding reads."""
    folder.mkdir(exist_ok=True)
    config = catalogue.load().models[model].shape.model_dump_json()
    (folder / "config.json").write_text(config)


def test_the_folders_reach_the_store(machine: list[Any], tmp_path: Path) -> None:
    own_folder(tmp_path / "own", "nano")
    launched = launch(model_name="nano", cache_path=tmp_path / "cache", model_path=tmp_path / "own")
    assert machine == [(tmp_path / "cache", tmp_path / "own")]
    assert launched.spec.model_dir == str(tmp_path / "own")


def lack_one(monkeypatch: pytest.MonkeyPatch) -> ArtifactFile:
    file = ArtifactFile(name="config.json", size_bytes=5 * GB, sha256="a" * 64)
    monkeypatch.setattr(store, "to_fetch", lambda *_: [file])
    return file


def test_what_the_cache_lacks_is_said_before_it_is_fetched(
    machine: list[tuple[Path, Path | None]],
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = lack_one(monkeypatch)
    launched = launch(model_name="gpt-oss-20b")
    assert launched.to_fetch == (file,)
    assert launched.model_dir == cache / "models" / "gpt-oss-20b"
    assert machine == []  # deciding fetches nothing: so a dry run does not
    with caplog.at_level("INFO"):
        tell(launched)
    assert "1 file (5.0 GB) of gpt-oss-20b are missing: a start downloads them" in caplog.text


def test_obtain_fetches_from_where_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    lack_one(monkeypatch)
    asked: list[store.Fetching] = []
    monkeypatch.setattr(store, "resolve", lambda *_, fetching: asked.append(fetching))
    settings = load({"model_name": "gpt-oss-20b", "repository_override": "s3://bucket/models"})
    obtain(settings, prepare(settings))
    assert asked == [store.Fetching(is_allowed=True, override="s3://bucket/models")]


@pytest.mark.parametrize("is_own", [False, True])
def test_nothing_is_fetched_where_it_is_forbidden_or_not_needed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_own: bool
) -> None:
    lack_one(monkeypatch)
    own_folder(tmp_path, "gpt-oss-20b")
    given = {"model_path": tmp_path} if is_own else {"disable_model_download": True}
    assert launch(model_name="gpt-oss-20b", **given).to_fetch == ()


def test_a_model_path_on_the_network_is_chosen_for_by_its_config_and_fetched_later(
    tmp_path: Path,
) -> None:
    config = catalogue.load().models["gpt-oss-20b"].shape.model_dump_json().encode()
    files = {"m/tuned/config.json": config, "m/tuned/model.safetensors": shard("a")}
    with serving(files) as served:
        settings = load({"model_path": f"{served.url}/m/tuned", "cache_path": tmp_path})
        launched = prepare(settings)
        assert launched.served_name == "gpt-oss-20b"
        assert [file.name for file in launched.to_fetch] == ["model.safetensors"]
        assert not (launched.model_dir / "model.safetensors").exists()
        obtain(settings, launched)
    assert (launched.model_dir / "model.safetensors").read_bytes() == shard("a")
    assert launched.spec.model_dir == str(launched.model_dir)
