"""`harmonium serve` as the front of a Dynamo deployment: what it takes from the settings."""

from __future__ import annotations

from typing import Any

import pytest

from engines.factory import installed_engines
from engines.spec import EngineSpec
from profiles.errors import InvalidConstraint
from service.run import pythons
from service.run.startup import Launch, environments_of, tell
from service.settings.errors import SettingsError
from service.settings.settings import load
from tests.service.run.conftest import cache, default_cache, launch, machine

__all__ = ["cache", "default_cache", "machine"]

pytestmark = pytest.mark.usefixtures("machine", "cache")


@pytest.fixture
def library(machine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo's library is there, and no engine."""
    names = ("native", "llama_cpp", "vllm", "tensorrt_llm")
    engines = {"dynamo": None, **dict.fromkeys(names, "not installed")}
    monkeypatch.setattr(pythons, "installed_engines", lambda: engines)


def front(**settings: Any) -> Launch:
    given = {"dynamo_endpoint": "a.b.c", "model_name": "gpt-oss-20b", **settings}
    return launch(**given)


@pytest.mark.usefixtures("library")
def test_a_front_needs_no_engine_no_weights_and_no_gpu(caplog: pytest.LogCaptureFixture) -> None:
    launched = front(max_queue_length=5, max_model_len=4096)
    assert launched.spec == EngineSpec(
        "dynamo",
        {"endpoint": "a.b.c", "discovery": "etcd", "max_num_waiting": 5},
        {"max_model_len": 4096},
    )
    assert launched.to_fetch == ()
    assert launched.served_name == "gpt-oss-20b"
    assert "openai/gpt-oss-20b" in launched.aliases
    (environment,) = environments_of(launched)
    assert environment["DYN_LOG"] == "error"
    with caplog.at_level("INFO"):
        tell(launched)
    assert "the workers of a.b.c compute" in caplog.text
    assert "CPU" not in caplog.text


@pytest.mark.usefixtures("library")
def test_a_front_finds_its_workers_as_it_is_told() -> None:
    launched = front(dynamo_discovery="file", served_model_name="mine,other")
    assert launched.spec.options["discovery"] == "file"
    assert (launched.served_name, launched.more_names) == ("mine", ("other",))


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model_name": None}, "set NIM_MODEL_NAME as well"),
        ({"model_name": "gpt-oss-21b"}, "'gpt-oss-21b' is unknown.*gpt-oss-20b"),
        ({"tags_selector": "tp=2"}, "NIM_TAGS_SELECTOR are set: a front runs no engine"),
        ({"replicas": 2}, "set NIM_REPLICAS for the workers"),
        ({"batch_invariant": True}, "set NIM_BATCH_INVARIANT for the workers"),
        ({"kv_cache_dtype": "fp8"}, "set NIM_KV_CACHE_DTYPE for the workers"),
    ],
)
def test_what_is_not_a_fronts_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConstraint, match=message):
        front(**settings)


def test_without_the_library_the_command_that_adds_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pythons, "installed_engines", installed_engines)
    with pytest.raises(InvalidConstraint, match=r"tools/install\.py dynamo"):
        front()


@pytest.mark.parametrize("endpoint", ["a.b", "a.b.c.d", "a b.c.d", "dyn://a.b.c"])
def test_an_endpoint_has_three_parts(endpoint: str) -> None:
    with pytest.raises(SettingsError, match="--dynamo-endpoint"):
        load({"dynamo_endpoint": endpoint})
