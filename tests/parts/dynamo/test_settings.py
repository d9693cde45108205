"""Settings of roles and of what workers know together."""

from __future__ import annotations

from typing import Any

import pytest

from parts.dynamo.settings import DynamoSettings
from service.settings.errors import SettingsError
from service.settings.settings import load as load_all
from service.settings.settings import secret_values


def load(given: dict[str, Any]) -> DynamoSettings:
    return load_all(given).of(DynamoSettings)


def test_a_roles_settings_are_refused_without_it_and_with_the_other() -> None:
    secret = {"kv_handover_secret": "q7Vn2xPz81LdRk0w"}
    prefill, decode = ({"dynamo_role": role} | secret for role in ("prefill", "decode"))
    endpoint, timeout = (
        {"kv_handover_endpoint": "tcp://10.0.0.7:6000"},
        {"kv_handover_timeout_s": 3.0},
    )
    assert load(prefill | endpoint).kv_handover_endpoint == "tcp://10.0.0.7:6000"
    endpoint = {"kv_handover_endpoint": "tcp://fd00::7:5560"}
    assert load(prefill | endpoint).kv_handover_endpoint == "tcp://[fd00::7]:5560"
    assert load(decode | timeout).kv_handover_timeout_s == 3.0
    for unfit in (prefill | timeout, decode | endpoint, secret):
        with pytest.raises(SettingsError, match="has no effect with"):
            load(unfit)
    with pytest.raises(SettingsError, match="every address of the machine"):
        load(prefill | {"kv_handover_endpoint": "tcp://0.0.0.0:6000"})


def test_a_short_secret_of_handovers_is_refused_and_not_shown() -> None:
    with pytest.raises(SettingsError, match="at least 16") as caught:
        load({"dynamo_role": "decode", "kv_handover_secret": "too short"})
    assert "too short" not in str(caught.value)
    secret = "q7Vn2xPz81LdRk0w"
    found = load_all({"dynamo_role": "decode", "kv_handover_secret": secret})
    assert secret in secret_values(found)
    assert secret not in repr(found)


@pytest.mark.parametrize(
    "secret", ["a" * 16, "passwordpassword", "0123456789abcdef", "zyxwvutsrqponmlkji", "ab12" * 20]
)
def test_a_secret_that_is_easily_guessed_is_refused_with_the_remedy(secret: str) -> None:
    with pytest.raises(
        SettingsError, match=r"NIM_KV_HANDOVER_SECRET.*openssl rand -base64 32"
    ) as e:
        load({"dynamo_role": "decode", "kv_handover_secret": secret})
    assert secret not in str(e.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dynamo_role", "prefill"),  # without a secret
        ("kv_handover_endpoint", "tcp://127.0.0.1:6000"),  # without a role, as the next ones
        ("kv_handover_timeout_s", "3"),
        ("kv_handover_transport", "nixl"),
    ],
)
def test_a_bad_value_is_refused_by_name_value_and_remedy(
    monkeypatch: pytest.MonkeyPatch, field: str, value: str
) -> None:
    monkeypatch.setenv(f"NIM_{field.upper()}", value)
    with pytest.raises(SettingsError) as caught:
        load({})
    remedy = DynamoSettings.model_fields[field].description
    for each in (f"NIM_{field.upper()}", value, str(remedy)):
        assert each in str(caught.value)


def test_an_endpoint_of_the_wrong_shape_is_refused_in_words() -> None:
    with pytest.raises(SettingsError, match="It must be three names with dots between them"):
        load({"dynamo_endpoint": "a b"})
