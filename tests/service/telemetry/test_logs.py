"""Log lines: ids that tie them together, fields for machines, and no secret in any of them."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from auth import audit
from service.settings.settings import load, secret_values
from service.telemetry import logs
from service.telemetry.logs import Redactor

Fixture = Callable[..., Any]

PATH = "/v1/chat/completions"
SCRIPT = "<|channel|>final<|message|>The answer<|return|>"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.fixture
def lines() -> Iterator[Callable[[], list[Any]]]:
    """What was logged, as JSON."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.JSONFormatter(Redactor(["correct-horse"])))
    handler.addFilter(lambda record: not record.name.startswith("http"))  # the client in here
    root = logging.getLogger()
    level = root.level
    root.setLevel("INFO")
    root.addHandler(handler)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    root.removeHandler(handler)
    root.setLevel(level)


async def test_every_line_of_a_request_bears_its_ids(
    make_runtime: Fixture, make_client: Fixture, chat_body: Fixture, lines: Fixture
) -> None:
    client = await make_client(make_runtime(SCRIPT, fail_at=4))
    headers = {"X-Request-Id": "my-request", "traceparent": PARENT}
    await client.post(PATH, json=chat_body(stream=True), headers=headers)
    failed, access = lines()
    assert "failed in mid-stream" in failed["message"]
    for line in (failed, access):
        assert line["request_id"] == "my-request"
        assert line["trace_id"] == TRACE
    assert failed["level"] == "ERROR"


async def test_the_access_line_has_fields_and_no_text_of_prompt_or_answer(
    make_runtime: Fixture, make_client: Fixture, chat_body: Fixture, lines: Fixture
) -> None:
    client = await make_client(make_runtime(SCRIPT))
    body = chat_body(messages=[{"role": "user", "content": "a very private question"}])
    await client.post(PATH, json=body)
    (line,) = lines()
    fields = line["access"]
    assert fields["method"] == "POST"
    assert fields["route"] == fields["path"] == PATH
    assert fields["status"] == 200
    assert fields["outcome"] == "success"
    assert fields["completion_tokens"] == 6
    assert fields["prompt_tokens"] > 0
    assert fields["duration_ms"] > 0
    assert "private" not in str(line)
    assert "answer" not in str(line)
    assert line["logger"] == "harmonium.access"


@pytest.mark.parametrize("header", ["nonsense", f"ff-{TRACE}-00f067aa0ba902b7-01", "00-0-0-0"])
async def test_a_trace_context_that_is_none_is_left_out(
    make_runtime: Fixture, make_client: Fixture, lines: Fixture, header: str
) -> None:
    client = await make_client(make_runtime(SCRIPT))
    await client.get("/v1/models", headers={"traceparent": header})
    (line,) = lines()
    assert "trace_id" not in line


def test_audit_lines_carry_their_fields(lines: Fixture) -> None:
    audit.write("key.created", key="abc", name="ci")
    (line,) = lines()
    assert line["logger"] == "harmonium.audit"
    assert line["audit"] == {"event": "key.created", "key": "abc", "name": "ci"}


def test_secrets_are_hidden_in_messages_tracebacks_and_fields(lines: Fixture) -> None:
    log = logging.getLogger("harmonium.test")
    try:
        raise ValueError("redis://user:hunter2pass@host:6379 refused")
    except ValueError:
        log.exception("with correct-horse", extra={"audit": {"key": ["correct-horse"]}})
    (line,) = lines()
    assert "correct-horse" not in str(line)
    assert "hunter2pass" not in str(line)
    assert "host:6379" in line["exc_info"]
    assert line["audit"] == {"key": ["[redacted]"]}


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("Authorization: Bearer abcdef0123456789", "abcdef0123456789"),
        ("got eyJhbGciOiJub25lIn0.eyJzdWIiOiJ4In0.c2ln here", "eyJzdWIiOiJ4In0"),
        ("key sk-proj-abcdefghijklmnop1234", "abcdefghijklmnop"),
        ("hmk_0123456789ab_" + "s" * 43, "s" * 43),
        ('{"api_key": "opensesame"}', "opensesame"),
        ("?client_secret=opensesame&x=1", "opensesame"),
    ],
)
def test_what_looks_like_a_secret_is_hidden(text: str, secret: str) -> None:
    assert secret not in Redactor()(text)


@pytest.mark.parametrize(
    "text",
    [
        "POST /v1/chat/completions -> 200 in 12 ms, request req-0123, 7 prompt tokens (0 cached)",
        "max_tokens: 17 is too large; http://127.0.0.1:8000/docs says more",
        "the engine process is ready, process id 4711",
        "hmk_0123456789ab was revoked",
    ],
)
def test_ordinary_lines_stay_as_they_are(text: str) -> None:
    assert Redactor(["key-of-mine"])(text) == text


def test_all_that_the_environment_gave_in_confidence_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NIM_API_KEYS", "alpha-key-0123456789, beta-key-0123456789")
    monkeypatch.setenv("HF_TOKEN", "gamma-token")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=delta-key")
    redact = Redactor(secret_values(load()))
    text = redact("alpha-key-0123456789 beta-key-0123456789 gamma-token x-key=delta-key")
    assert not any(name in text for name in ("alpha", "beta", "gamma", "delta"))


def test_text_lines_hide_secrets_too() -> None:
    formatter = logs.TextFormatter(Redactor(["correct-horse"]))
    record = logging.makeLogRecord({"levelname": "INFO", "msg": "with correct-horse"})
    assert "correct-horse" not in formatter.format(record)


@pytest.mark.parametrize("place", ["message", "traceback"])
def test_no_text_from_elsewhere_can_look_like_a_line_of_its_own(place: str) -> None:
    forged = "x\nINFO 2026-01-01 auth.granted caller=root\r\x1b[2K\x9b\u2028INFO\u202e"
    try:
        raise ValueError(forged)
    except ValueError as error:
        told = {"msg": "the tool said: %s", "args": (forged,)}
        failed = {"msg": "it failed", "exc_info": (ValueError, error, error.__traceback__)}
    record = logging.makeLogRecord(
        {"levelname": "WARNING", **(told if place == "message" else failed)}
    )
    written = logs.TextFormatter(Redactor()).format(record)
    lines = written.splitlines()
    assert lines[0].startswith("WARNING ")
    assert all(line.startswith("    ") for line in lines[1:])
    assert written.replace("\n", "").isprintable()
    assert r"\r\x1b[2K\x9b\u2028INFO\u202e" in written


@pytest.mark.parametrize(
    "text", ["a://" + "x:" * 200_000, "password " * 10_000, "bearer " * 20_000]
)
def test_long_lines_that_look_like_secrets_take_no_longer_than_others(text: str) -> None:
    """40 kB of the first took 15 s: this would take half an hour."""
    assert Redactor()(text) == text


def test_the_search_for_a_token_has_an_end() -> None:
    """It begins anew at each `eyJ`; without an end, 100 kB of them took 26 s."""
    for length, is_hidden in ((1_900, True), (2_100, False)):
        text = f"eyJ{'a' * length}.payload.signature"
        assert (Redactor()(text) == "[redacted]") is is_hidden


def test_a_secret_beyond_ascii_is_hidden_as_a_header_shows_it() -> None:
    secret = "schl\u00fcssel-f\u00fcr-alle"
    text = Redactor([secret])(f"{secret} {secret.encode().decode('latin-1')}")
    assert text == "[redacted] [redacted]"


def test_the_routes_that_need_no_key_are_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIM_READ_WITHOUT_KEY", "metrics,models,render")
    path = "GET /v1/models, POST /v1/chat/completions/render"
    assert Redactor(secret_values(load()))(path) == path
