"""The command line."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import click
import pytest
from pydantic import SecretStr

from engines.factory import installed_engines
from profiles.hardware.written import parse_hardware
from service.__main__ import commands, main
from service.cli.loading import SECTIONS
from service.cli.serve import curl_line
from service.run import startup
from service.run.startup import warn_of_unknown_names
from service.settings.settings import Settings, flag_name
from service.telemetry.logs import STANDS_OUT, Redactor, TextFormatter

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("argument", ["version", "--version"])
def test_version(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([argument]) == 0
    assert capsys.readouterr().out == f"harmonium {version('harmonium')}\n"


def test_without_a_command_the_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    shown = capsys.readouterr().err
    assert all(command in shown for command in ("serve", "profiles", "doctor", "keys", "config"))


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        (["serv"], "'serve'"),
        (["serve", "--sever-port", "1"], "'--server-port'"),
        (["serve", "-xyz"], "No such option '-xyz'"),
        (["profiles", "--jsn"], "'--json'"),
    ],
)
def test_what_is_misspelt_is_met_with_what_is_meant(
    arguments: list[str], nearest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert nearest in capsys.readouterr().err


def test_an_unknown_variable_is_told_with_the_nearest(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("NIM_SEVER_PORT", "8001")
    warn_of_unknown_names()
    assert "NIM_SEVER_PORT is not a setting" in caplog.text
    assert "did you mean NIM_SERVER_PORT?" in caplog.text


def test_the_list_of_commands_has_a_section_for_each_and_fits_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "..." not in text.split("Options:")[1]
    rows = re.findall(r"^  ([a-z]\S*) +\S.*\.$", text, re.M)
    assert sorted(rows) == sorted(commands())
    sections = re.findall(r"^(.+):$", text, re.M)
    used = {each.section for each in commands().values()}
    assert sections == ["Options", *(each for each in SECTIONS if each in used)]


@pytest.mark.heavy
def test_the_list_of_commands_imports_no_command() -> None:
    program = (
        "import sys; from service.__main__ import main; main(['--help']); "
        "print(sorted({'pydantic', 'torch', 'fastapi', 'httpx2'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("[]\n")


@pytest.mark.parametrize("command", ["profiles", "list-model-profiles"])
def test_profiles_under_both_names(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--hardware", "cpux4"]) == 0
    assert "nano" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["serve", "nim-serve"])
def test_serve_has_a_flag_for_every_setting_but_secrets_in_groups(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert all(flag in text for field in Settings.model_fields if (flag := flag_name(field)))
    assert "--api-keys " not in text
    for group, flag in [("Server and log:", "--server-port"), ("Telemetry:", "--access-log")]:
        assert flag in text.split(f"\n{group}")[1].split("\n\n")[0]


def test_a_bad_setting_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIM_SERVER_PORT", "http")
    assert main(["serve"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("harmonium: NIM_SERVER_PORT has value 'http'")


def test_a_bad_flag_is_named_as_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--server-port=http"]) == 2
    assert capsys.readouterr().err.startswith("harmonium: --server-port has value 'http'")


def test_config_says_where_each_value_comes_from(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIM_LOG_LEVEL", "debug")
    monkeypatch.setenv("NIM_API_KEYS", "a-secret-that-must-not-show")
    assert main(["config", "--json", "--server-port=9001", "--jsonl-logging"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["NIM_SERVER_PORT"] == {"value": 9001, "from": "--server-port"}
    assert found["NIM_JSONL_LOGGING"] == {"value": True, "from": "--jsonl-logging"}
    assert found["NIM_LOG_LEVEL"] == {"value": "DEBUG", "from": "NIM_LOG_LEVEL"}
    assert found["NIM_API_KEYS"] == {"value": "(set)", "from": "NIM_API_KEYS"}
    assert found["NIM_API_WORKERS"] == {"value": None, "from": "default"}
    assert found.keys() == {f"NIM_{field.upper()}" for field in Settings.model_fields}
    assert main(["config", "--server-port=9001"]) == 0
    text = capsys.readouterr().out
    assert "NIM_SERVER_PORT" in text
    assert "9001  <- --server-port" in text
    assert "must-not-show" not in text


def test_no_flag_turns_a_setting_of_the_environment_off(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIM_JSONL_LOGGING", "1")
    assert main(["config", "--json", "--no-jsonl-logging"]) == 0
    found = json.loads(capsys.readouterr().out)["NIM_JSONL_LOGGING"]
    assert found == {"value": False, "from": "--jsonl-logging"}


def test_a_dry_run_says_what_would_be_served_and_starts_nothing(
    capsys: pytest.CaptureFixture[str], nano_cache: Path
) -> None:
    flags = [f"--cache-path={nano_cache}", "--server-port=9001"]
    assert main(["serve", "--dry-run", *flags]) == 0
    told = capsys.readouterr()
    assert "9001  <- --server-port" in told.out
    assert "Profile: native-cpu-fp32" in told.err
    assert main(["serve", "--dry-run", *flags, "--model-name=gpt-17"]) == 1
    assert "gpt-17" in capsys.readouterr().err


def test_a_start_with_nothing_to_serve_exits_3_with_the_command_that_adds_it(
    capsys: pytest.CaptureFixture[str], nano_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup, "visible_hardware", lambda: parse_hardware("t4:ram=8gb"))
    flags = [f"--cache-path={nano_cache}", "--server-port=0"]
    if installed_engines()["llama_cpp"] is None:
        pytest.skip("llama-cpp-python is installed here")
    assert main(["serve", "--dry-run", *flags]) == 3
    said = capsys.readouterr().err
    assert "gpt-oss-20b fits 1 x Tesla T4, but engine llama_cpp is not installed: run `py" in said
    assert len(said.splitlines()) <= 24
    assert main(["serve", *flags]) == 3
    assert main(["profiles", "--hardware", "t4:ram=8gb"]) == 3


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("harmonium ser", "serve"),
        ("harmonium serve --server-p", "--server-port"),
        ("harmonium serve --profile-goal lat", "latency"),
    ],
)
def test_a_shell_completes_commands_flags_and_values(
    words: str, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", "bash"]) == 0
    assert "_HARMONIUM_COMPLETE=bash_complete" in capsys.readouterr().out
    monkeypatch.setenv("_HARMONIUM_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 0
    assert f"plain,{expected}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("is_coloured", "level"), [(True, "INFO"), (True, "ERROR"), (False, "INFO")]
)
def test_the_ready_line_and_errors_stand_out_on_a_terminal_only(
    is_coloured: bool, level: str
) -> None:
    line = logging.LogRecord("x", logging.getLevelName(level), "f", 1, "Ready", None, None)
    line.__dict__.update(STANDS_OUT if level == "INFO" else {})
    shown = TextFormatter(Redactor(), is_coloured=is_coloured).format(line)
    assert ("\x1b[" in shown) is is_coloured
    assert click.unstyle(shown).endswith("Ready")


def test_an_ordinary_line_is_as_bright_as_the_terminal_and_its_head_is_not() -> None:
    line = logging.LogRecord("x", logging.INFO, "f", 1, "Hello", None, None)
    shown = TextFormatter(Redactor(), is_coloured=True).format(line)
    head, message = shown.removeprefix("\x1b[2m").split("\x1b[0m")
    assert message == " Hello"
    assert re.fullmatch(r"INFO +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}", head)


def test_what_is_to_be_pasted_is_not_redacted() -> None:
    pasted = curl_line("http://h:1", "nano", Settings(api_keys=SecretStr("k" * 20)))
    assert Redactor(["k" * 20])(pasted) == pasted
