"""`harmonium serve MODEL`, other servers' flags, and settings from a file."""

from pathlib import Path
from typing import Any

import click
import pytest

from service.__main__ import main
from service.cli import config_file
from service.cli.serve import with_own_names
from service.settings.errors import SettingsError


def shown(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    main(["serve", "--dry-run", *arguments])
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("model", "setting"),
    [
        ("nano", "NIM_MODEL_NAME"),
        ("openai/gpt-oss-20b", "NIM_MODEL_NAME"),
        ("hf://openai/gpt-oss-20b", "NIM_MODEL_PATH"),
        ("./weights", "NIM_MODEL_PATH"),
        ("model.gguf", "NIM_MODEL_PATH"),
    ],
)
def test_serve_takes_the_model_first(
    model: str, setting: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown([model], capsys).splitlines()
    (line,) = [line for line in lines if line.split()[:1] == [setting]]
    assert line.split()[1].removeprefix("./") == model.removeprefix("./")


def test_a_name_is_a_name_though_a_folder_has_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nano").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["serve", "nano", "--dry-run"]) == 0
    capsys.readouterr()


def test_port_host_and_tensor_parallelism_as_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(["nano", "--port", "8123", "--host", "0.0.0.0", "-tp", "2"], capsys)
    for line in ("NIM_SERVER_PORT", "8123"), ("NIM_SERVER_HOST", "0.0.0.0"):
        assert any(row.split()[:2] == list(line) for row in text.splitlines())
    assert any(row.split()[:2] == ["NIM_TAGS_SELECTOR", "tp=2"] for row in text.splitlines())


def test_tags_and_parallelism_go_together(capsys: pytest.CaptureFixture[str]) -> None:
    asked = {"tags_selector": "precision=mxfp4", "tensor_parallel_size": 2}
    chosen = with_own_names({**asked, "pipeline_parallel_size": 4}, {})
    assert chosen == {"tags_selector": "precision=mxfp4,tp=2,pp=4"}
    text = shown(["nano", "-pp", "2"], capsys)
    assert any(row.split()[:2] == ["NIM_TAGS_SELECTOR", "pp=2"] for row in text.splitlines())


@pytest.mark.parametrize(
    "flags",
    [
        {"model": "nano", "model_name": "gpt-oss-20b"},
        {"model": "nano", "model_path": "/weights"},
        {"tensor_parallel_size": 2, "tags_selector": "tp=4"},
        {"pipeline_parallel_size": 2, "tags_selector": "model=nano, pp=4"},
    ],
)
def test_what_is_said_twice_is_refused(flags: dict[str, Any]) -> None:
    with pytest.raises(click.UsageError, match="twice"):
        with_own_names(flags, {})


def test_a_flag_goes_before_a_variable_and_that_before_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "harmonium.yaml"
    file.write_text(
        "model: nano\nport: 8001\nmax-model-len: 2048\nNIM_LOG_LEVEL: DEBUG\n"
        "served-model-name: [a, b]\napi-workers: 3\n"
    )
    monkeypatch.setenv("NIM_MAX_MODEL_LEN", "1024")
    text = shown(["--config", str(file), "--api-workers", "2"], capsys)
    rows = {row.split()[0]: row.split()[1] for row in text.splitlines() if len(row.split()) > 1}
    assert rows["NIM_MODEL_NAME"] == "nano"
    assert rows["NIM_SERVER_PORT"] == "8001"
    assert rows["NIM_MAX_MODEL_LEN"] == "1024"
    assert rows["NIM_LOG_LEVEL"] == "DEBUG"
    assert rows["NIM_SERVED_MODEL_NAME"] == "a,b"
    assert rows["NIM_API_WORKERS"] == "2"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max-model-length: 8", "did you mean max-model-len"),
        ("foo: 1", "'foo' is not a setting"),
        ("- a list", "must hold names and values"),
        ("a: [", "cannot be read"),
        ("max-model-len: {a: b}", "must be one value"),
    ],
)
def test_a_bad_file_is_refused_with_its_name(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=said) as error:
        config_file.read(file)
    assert str(file) in str(error.value)


def test_a_context_that_holds_no_prompt_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--max-model-len", "1", "--dry-run"]) == 2
    assert "greater than or equal to 128" in capsys.readouterr().err


def test_other_commands_take_their_argument_bare(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profiles", "cpux4"]) == 0
    assert "nano" in capsys.readouterr().out
    assert main(["download-to-cache", "gpt-oss-20b", "--dry-run"]) == 0
    assert "gpt-oss-20b" in capsys.readouterr().out
    assert main(["profiles", "cpux4", "--hardware", "cpux4"]) == 2
    assert main(["chat", "hello", "--quick", "hello"]) == 2
