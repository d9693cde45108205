"""Settings: defaults, refusals that help, and a reference page that is current."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path

import pytest
from pydantic import SecretStr

from service.settings.errors import SettingsError
from service.settings.group import SHAPE
from service.settings.secret import checked_secret
from service.settings.settings import Settings, engine_environment, env_name, load, unknown_names
from tests.needs import needs

DOCS = Path(__file__).parents[3] / "docs" / "settings.md"


def test_nothing_is_required() -> None:
    settings = load()
    assert settings.server_host == "127.0.0.1"
    assert settings.server_port == 8000
    assert settings.cache_path == Path("~/.cache/harmonium").expanduser()


def test_the_environment_is_read_and_the_command_line_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIM_SERVER_PORT", "9001")
    monkeypatch.setenv("NIM_LOG_LEVEL", "debug")
    assert load().server_port == 9001
    assert load().log_level == "DEBUG"
    assert load({"server_port": "9002"}).server_port == 9002


def test_nims_operator_may_give_a_folder_as_the_models_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NIM_MODEL_NAME", "/model-store")
    assert load().model_path == Path("/model-store")
    assert load().model_name is None
    monkeypatch.setenv("NIM_MODEL_PATH", "hf://acme/tuned")
    monkeypatch.setenv("NIM_CACHE_PATH", "/model-store")
    assert load().model_path == "hf://acme/tuned"
    monkeypatch.setenv("NIM_CACHE_PATH", "/elsewhere")
    with pytest.raises(SettingsError, match="NIM_MODEL_NAME has value '/model-store'"):
        load()


@pytest.mark.parametrize("value", [",", " , ,", " "])
def test_keys_that_are_none_do_not_open_the_server(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("NIM_API_KEYS", value)
    with pytest.raises(SettingsError, match=r"NIM_API_KEYS .*it contains an empty key"):
        load()


def test_a_key_that_could_be_guessed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIM_API_KEYS", f"{'x' * 16},{'y' * 15}")
    with pytest.raises(SettingsError, match=r"NIM_API_KEYS .*fewer than 16") as caught:
        load()
    assert "xx" not in str(caught.value)
    assert "yy" not in str(caught.value)


def test_an_empty_variable_is_an_unset_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIM_MAX_MODEL_LEN", "")
    assert load().max_model_len is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NIM_SERVER_PORT", "http"),
        ("NIM_SERVER_PORT", "70000"),
        ("NIM_MAX_MODEL_LEN", "0"),
        ("NIM_PROFILE_GOAL", "fast"),
        ("NIM_SERVED_MODEL_NAME", "two words"),
        ("NIM_SERVED_MODEL_NAME", "one,"),
        ("NIM_SERVED_MODEL_NAME", "one, two,one"),
        ("NIM_DRAIN_GRACE_S", "-1"),
        ("NIM_LOG_LEVEL", "loud"),
        ("NIM_JSONL_LOGGING", "maybe"),
        ("NIM_TAGS_SELECTOR", "tp:2"),
    ],
)
def test_a_bad_value_is_refused_by_name_value_and_remedy(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as caught:
        load()
    remedy = Settings.model_fields[name.removeprefix("NIM_").lower()].description
    assert name in str(caught.value)
    assert value in str(caught.value)
    assert str(remedy) in str(caught.value)


def test_random_secrets_are_taken() -> None:
    chance = random.Random(1)
    for _ in range(2000):
        for made in (chance.randbytes(8).hex(), base64.b64encode(chance.randbytes(32)).decode()):
            checked_secret(SecretStr(made))


def test_all_bad_values_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIM_SERVER_PORT", "http")
    monkeypatch.setenv("NIM_MAX_MODEL_LEN", "long")
    with pytest.raises(SettingsError, match=r"(?s)NIM_MAX_MODEL_LEN.*NIM_SERVER_PORT"):
        load()


def test_keys_never_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIM_API_KEYS", "alpha-secret-012, beta-secret-0123,")
    settings = load()
    assert settings.api_key_list == ["alpha-secret-012", "beta-secret-0123"]
    assert "-secret-" not in repr(settings)


def test_the_engine_gets_no_keys_and_patient_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIM_API_KEYS", "secret")
    monkeypatch.setenv("HF_HOME", "/models")
    environment = engine_environment({"NCCL_DEBUG": "WARN"})
    assert environment["NCCL_DEBUG"] == "WARN"  # what a profile sets
    assert "secret" not in environment.values()
    assert environment["HF_HOME"] == "/models"
    assert environment["OMP_WAIT_POLICY"] == "PASSIVE"
    assert environment["GOMP_SPINCOUNT"] == "3000"
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert engine_environment({})["OMP_WAIT_POLICY"] == "ACTIVE"
    assert "GOMP_SPINCOUNT" not in engine_environment({})


def test_the_kernels_that_an_engine_keeps_are_few_unless_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
    monkeypatch.delenv(name, raising=False)
    assert engine_environment({})[name] == "256"
    monkeypatch.setenv(name, "1024")
    assert engine_environment({})[name] == "1024"


def test_unknown_variables_are_found_with_the_nearest_known_name() -> None:
    environ = {"NIM_SERVER_PROT": "1", "NIM_SERVER_PORT": "1"}
    assert unknown_names(environ) == [("NIM_SERVER_PROT", "NIM_SERVER_PORT")]


@needs("habits")
def test_a_variable_of_nims_has_no_nearest_name() -> None:
    assert unknown_names({"NIM_ENABLE_KV_CACHE_REUSE": "1"}) == [
        ("NIM_ENABLE_KV_CACHE_REUSE", None)
    ]


# The last two are parts' settings.
SHAPES = {
    "model_name": "letters, digits and any of ._:/-",
    "served_model_name": "up to 16 names, separated by commas",
    "kv_events_topic": "visible ASCII characters",
    "otel_exporter_otlp_endpoint": "begins with http:// or https://",
}


@pytest.mark.parametrize(
    ("name", "words"),
    [(env_name(field), SHAPES[field]) for field in SHAPES if field in Settings.model_fields],
)
def test_a_value_of_the_wrong_shape_is_refused_in_words(
    monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    monkeypatch.setenv(name, "a b")
    with pytest.raises(
        SettingsError, match=f"{name} has value 'a b': It must be .*{words}"
    ) as error:
        load()
    assert "pattern" not in str(error.value)


def test_each_pattern_of_a_setting_has_its_words() -> None:
    fields = Settings.model_json_schema()["properties"]
    with_pattern = {name for name, field in fields.items() if '"pattern"' in json.dumps(field)}
    assert with_pattern - {"model_path"} == {name for name, f in fields.items() if SHAPE in f}
