"""The command line."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from service.__main__ import main
from service.settings import Settings, flag_name


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out == f"harmonium {version('harmonium')}\n"


def test_without_a_command_the_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["profiles", "list-model-profiles"])
def test_profiles_under_both_names(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--hardware", "cpux4"]) == 0
    assert "nano" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["serve", "nim-serve"])
def test_serve_has_a_flag_for_every_setting_but_secrets(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = capsys.readouterr().out
    assert all(flag in text for field in Settings.model_fields if (flag := flag_name(field)))
    assert "--api-keys VALUE" not in text


def test_a_bad_setting_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIM_SERVER_PORT", "http")
    assert main(["serve"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("harmonium: NIM_SERVER_PORT has value 'http'")
