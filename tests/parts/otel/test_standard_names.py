"""OpenTelemetry's own variables set what ours do not."""

from __future__ import annotations

import json

import pytest

from service.__main__ import main


def test_config_names_the_standard_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")
    assert main(["config", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["NIM_ENABLE_OTEL"] == {"value": True, "from": "OTEL_EXPORTER_OTLP_ENDPOINT"}
    monkeypatch.setenv("NIM_ENABLE_OTEL", "0")
    assert main(["config", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["NIM_ENABLE_OTEL"] == {"value": False, "from": "NIM_ENABLE_OTEL"}
