"""Settings that are constants now: a set one is refused with its value, in every form."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from engines.process import stream
from engines.recovery.crash_records import CrashRecords
from service.__main__ import main
from service.runtime import ServerLimits
from service.settings.constants import constants
from service.settings.errors import SettingsError
from service.settings.settings import Settings, env_name, load

LIMITS = ServerLimits()
# What the code uses, of the core's.
USED = {
    "engine_quarantine_s": inspect.signature(CrashRecords).parameters["keep_s"].default,
    "max_unread_bytes": stream.MOST_BYTES_OF_ALL,
    "max_unread_bytes_per_stream": stream.MOST_BYTES,
    "slow_reader_timeout_s": LIMITS.slow_reader_timeout_s,
    "sse_keepalive_s": LIMITS.sse_keepalive_s,
}


def test_no_constant_is_a_setting() -> None:
    assert not constants().keys() & Settings.model_fields.keys()


@pytest.mark.parametrize("field", USED)
def test_the_value_is_the_one_that_is_used(field: str) -> None:
    assert float(constants()[field]) == USED[field]


@pytest.mark.parametrize("field", [*USED, "compare_origins"])
def test_a_variable_is_refused(monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    name = env_name(field)
    monkeypatch.setenv(name, "1")
    with pytest.raises(
        SettingsError, match=f"^{name} is no longer a setting, .*{constants()[field]}"
    ):
        load()
    monkeypatch.setenv(name, "")
    load()


def test_a_flag_and_a_line_of_a_file_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["serve", "--sse-keepalive-s=3"]) == 2
    said = "--sse-keepalive-s is no longer a setting, but a constant: 15. Remove it."
    assert said in capsys.readouterr().err
    file = tmp_path / "settings.yaml"
    file.write_text("sse-keepalive-s: 3\n")
    assert main(["serve", "--config", str(file)]) == 2
    assert said.removeprefix("--") in capsys.readouterr().err
