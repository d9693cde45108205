"""`download-to-cache` and `create-model-store`: a model brought here, checked, and carried away."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from profiles.catalogue.catalogue import Catalogue, load
from profiles.catalogue.models import ArtifactFile, Artifacts
from service.__main__ import main
from service.cli import model_files
from tests.profiles.hub import Served, serving
from tests.profiles.store.test_store import shard

MODEL = "gpt-oss-20b"


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A mirror of gpt-oss-20b with hardly any weights, which the catalogue takes for published."""
    catalogue = load()
    contents = {
        "config.json": json.dumps(catalogue.models[MODEL].shape.model_dump()).encode(),
        "model.safetensors.index.json": b'{"weight_map": {"a": "model-1.safetensors"}}',
        "model-1.safetensors": shard("a"),
    }
    listed = tuple(
        ArtifactFile(name=name, size_bytes=len(body), sha256=hashlib.sha256(body).hexdigest())
        for name, body in contents.items()
    )
    artifacts = Artifacts(repository=f"openai/{MODEL}", revision="abc", files=listed)
    small = catalogue.models[MODEL].model_copy(update={"artifacts": artifacts})
    profiles = tuple(
        p.model_copy(update={"model": small}) if p.model.name == MODEL else p
        for p in catalogue.profiles
    )
    changed = Catalogue(models={**catalogue.models, MODEL: small}, profiles=profiles)
    monkeypatch.setattr(model_files, "load", lambda: changed)
    with serving({f"m/openai/{MODEL}/{name}": body for name, body in contents.items()}) as served:
        monkeypatch.setenv("NIM_REPOSITORY_OVERRIDE", f"{served.url}/m")
        monkeypatch.setenv("NIM_CACHE_PATH", str(tmp_path / "cache"))
        yield served


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "models" / MODEL


def test_a_dry_run_says_what_it_would_fetch(
    mirror: Served, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["download-to-cache", "--model", MODEL, "--dry-run"]) == 0
    assert f"{MODEL}: 3 files to fetch, " in capsys.readouterr().out
    assert not folder.exists()
    assert mirror.asked == []


@pytest.mark.usefixtures("mirror")
def test_a_model_is_fetched_and_carried_away_as_a_plain_folder(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["download-to-cache", "-m", MODEL]) == 0
    assert f"{MODEL} is complete in {folder}" in capsys.readouterr().out
    target = tmp_path / "carried"
    assert main(["create-model-store", "-p", MODEL, "-m", str(target)]) == 0
    assert f"NIM_MODEL_PATH={target}" in capsys.readouterr().out
    assert sorted(p.name for p in target.iterdir()) == [
        "config.json",
        "model-1.safetensors",
        "model.safetensors.index.json",
    ]


@pytest.mark.parametrize(
    ("settings", "arguments", "told"),
    [
        ({}, ["gpt-oss-120b"], "gpt-oss-120b: 22 files"),
        ({"NIM_MODEL_NAME": "gpt-oss-20b"}, ["gpt-oss-120b"], "gpt-oss-120b: 22 files"),
        ({}, ["gpt-oss-20b"], "gpt-oss-20b: 10 files"),
        ({"NIM_TAGS_SELECTOR": "engine=llama_cpp"}, ["gpt-oss-20b"], "gpt-oss-20b: 1 file"),
        ({"NIM_MODEL_NAME": "gpt-oss-20b"}, ["--hardware", "h100"], "gpt-oss-20b: 10 files"),
        (
            {"NIM_MODEL_NAME": "gpt-oss-20b", "NIM_PROFILE_GOAL": "latency"},
            ["--hardware", "rtx4090"],
            "gpt-oss-20b: 1 file",
        ),
        ({}, ["gpt-oss-20b", "--hardware", "cpux8:ram=48gb"], "gpt-oss-20b: 1 file"),
    ],
)
def test_files_for_another_machine_are_chosen_as_it_would_choose(
    settings: dict[str, str],
    arguments: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A machine without a GPU, and with too little memory to serve, downloads for one that has."""
    monkeypatch.setenv("NIM_CACHE_PATH", str(tmp_path))
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert main(["download-to-cache", *arguments, "--dry-run"]) == 0
    assert told in capsys.readouterr().out


def test_a_pinned_profile_decides_about_the_files_of_its_own_model_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NIM_CACHE_PATH", str(tmp_path))
    pinned = next(p for p in load().profiles if p.reads_gguf and p.model.name == MODEL)
    monkeypatch.setenv("NIM_MODEL_PROFILE", pinned.id)
    assert main(["download-to-cache", "gpt-oss-20b", "gpt-oss-120b", "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert "gpt-oss-20b: 1 file" in told
    assert "gpt-oss-120b: 22 files" in told


@pytest.mark.parametrize(
    ("settings", "arguments", "told"),
    [
        ({}, ["--hardware", "abacus"], "'abacus' is not a known name"),
        ({"NIM_TAGS_SELECTOR": "tp=64"}, ["gpt-oss-20b"], "NIM_TAGS_SELECTOR is tp=64"),
    ],
)
def test_a_machine_or_a_tag_that_does_not_exist_is_a_bad_argument(
    settings: dict[str, str],
    arguments: list[str],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert main(["download-to-cache", *arguments, "--dry-run"]) == 2
    assert told in capsys.readouterr().err


def test_what_was_damaged_is_found_and_fetched_anew(
    mirror: Served, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["download-to-cache", "-m", MODEL]) == 0
    whole = (folder / "model-1.safetensors").read_bytes()
    (folder / "model-1.safetensors").write_bytes(whole[:-1] + b"x")
    mirror.asked.clear()
    assert main(["download-to-cache", "-m", MODEL, "--verify"]) == 0
    assert "model-1.safetensors is damaged" in capsys.readouterr().out
    assert (folder / "model-1.safetensors").read_bytes() == whole
    assert len(mirror.asked) == 1


def test_where_fetching_is_forbidden_the_remedy_is_told(
    mirror: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NIM_DISABLE_MODEL_DOWNLOAD", "1")
    assert main(["download-to-cache", "-m", MODEL]) == 1
    assert "lacks 3 of 3 files" in capsys.readouterr().err
    assert mirror.asked == []


def test_a_checkpoint_by_its_uri_is_fetched_into_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NIM_CACHE_PATH", str(tmp_path))
    files = {"m/tuned/config.json": b"{}", "m/tuned/model.safetensors": shard("a")}
    with serving(files) as served:
        uri = f"{served.url}/m/tuned"
        assert main(["download-to-cache", "--model-uri", uri, "--dry-run"]) == 0
        assert "tuned: 1 file to fetch, " in capsys.readouterr().out
        monkeypatch.setenv("NIM_MODEL_PATH", uri)
        assert main(["download-to-cache"]) == 0
    assert "tuned is complete in " in capsys.readouterr().out
    (folder,) = tmp_path.glob("models/tuned-*")
    assert (folder / "model.safetensors").read_bytes() == shard("a")


def test_nims_operator_fetches_several_profiles_and_gets_a_manifest(
    mirror: Served, folder: Path, tmp_path: Path
) -> None:
    known = [p for p in load().profiles if p.model.name == MODEL]
    titles = [p.title for p in known if p.artifacts == p.model.artifacts][:2]
    path = tmp_path / "manifest.json"
    assert main(["download-to-cache", "--profiles", *titles, "--manifest-file", str(path)]) == 0
    assert (folder / "model-1.safetensors").is_file()
    profiles = json.loads(path.read_text())["profiles"]
    tags = {"model": MODEL, "llm_engine": "native"}
    [files] = [p["workspace"]["files"] for p in profiles if tags.items() <= p["tags"].items()][:1]
    assert files.keys() == {p.name for p in folder.iterdir() if p.name[0] != "."}


def test_a_checkpoint_is_fetched_straight_into_a_volume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NIM_CACHE_PATH", str(tmp_path / "cache"))
    volume = tmp_path / "model-store"
    volume.mkdir()
    with serving({"m/config.json": b"{}", "m/model.safetensors": shard("a")}) as served:
        command = ["create-model-store", "--model-repo", f"{served.url}/m"]
        assert main([*command, "--model-store", str(volume)]) == 0
    assert f"NIM_MODEL_PATH={volume}" in capsys.readouterr().out
    assert (volume / "model.safetensors").read_bytes() == shard("a")
    assert not (tmp_path / "cache" / "models").exists()


def test_an_unknown_model_is_a_bad_argument(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["download-to-cache", "-m", "gpt-4"]) == 2
    assert "'gpt-4' is not a model (gpt-oss-120b, gpt-oss-20b, nano)" in capsys.readouterr().err


def test_a_folder_that_is_there_is_never_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NIM_CACHE_PATH", str(tmp_path / "cache"))
    assert main(["create-model-store", "-p", "nano", "-m", str(tmp_path)]) == 1
    assert f"{tmp_path} exists already" in capsys.readouterr().err
    assert not (tmp_path / "cache").exists()  # nothing was fetched to be told this
