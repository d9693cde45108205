"""NIM's names of settings, OpenTelemetry's own, and which wins."""

from __future__ import annotations

import pytest

from parts.otel.settings import OtelSettings, Standard, standard_of
from service.settings.errors import SettingsError
from service.settings.settings import load, unknown_names


def test_it_is_off_by_default() -> None:
    assert load().of(OtelSettings).enable_otel is None


def test_an_endpoint_switches_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://collector:4318")
    assert load().of(OtelSettings).enable_otel is True
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert load().of(OtelSettings).enable_otel is False
    monkeypatch.setenv("NIM_ENABLE_OTEL", "1")
    assert load().of(OtelSettings).enable_otel is True


def test_the_standards_own_variables_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert standard_of({}) == Standard("otlp", "otlp", "otlp", "http/protobuf", "harmonium")
    given = {"OTEL_SERVICE_NAME": "mine", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    found = standard_of({**given, "OTEL_LOGS_EXPORTER": "none", "OTEL_TRACES_EXPORTER": ""})
    assert found == Standard("otlp", "otlp", "none", "grpc", "mine")
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
    assert load().of(OtelSettings).otel_capture_content is True


def test_a_value_that_is_none_of_the_standards_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    with pytest.raises(SettingsError, match=r"OTEL_TRACES_EXPORTER has value 'zipkin': .*otlp"):
        load()


def test_nims_own_names_are_read_and_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"OTEL_SERVICE_NAME": "mine", "NIM_OTEL_SERVICE_NAME": "nims"}
    found = standard_of({**given, "NIM_OTEL_TRACES_EXPORTER": "none"})
    assert (found.service_name, found.traces_exporter) == ("nims", "none")
    monkeypatch.setenv("NIM_OTEL_METRICS_EXPORTER", "console")
    load()
    assert unknown_names() == []
    monkeypatch.setenv("NIM_OTEL_METRICS_EXPORTER", "zipkin")
    with pytest.raises(SettingsError, match="NIM_OTEL_METRICS_EXPORTER has value 'zipkin'"):
        load()


@pytest.mark.parametrize("name", ["logs_exporter", "exporter_otlp_protocol"])
def test_the_former_settings_name_the_variable_to_set(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(f"NIM_OTEL_{name.upper()}", "console")
    says = rf"NIM_OTEL_{name.upper()} is no longer a setting.* or OTEL_{name.upper()}\."
    with pytest.raises(SettingsError, match=says):
        load()
