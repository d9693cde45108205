"""A sitting from its first request to its report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click
import uvloop
from rich.console import Console

from parts.terminal.bench.exchange import Server
from parts.terminal.bench.fields import Fields
from parts.terminal.bench.figures import Objective
from parts.terminal.bench.loads import Planned
from parts.terminal.bench.sitting import BenchResults, How, sit
from parts.terminal.bench.table import notes, table
from parts.terminal.bench.traffic import Streams
from parts.terminal.client import ChatError, Client

MEASURED, FAILED, STOPPED = 0, 1, 130


def run(
    *,
    url: Sequence[str],
    key: str | None,
    model: str | None,
    loads: Sequence[Planned],
    streams: Sequence[int],
    rounds: int,
    prompt_words: int,
    max_tokens: int,
    is_fields: bool,
    repeats: int,
    is_warmed: bool,
    is_in_tokens: bool,
    ttft_ms: float,
    token_ms: float,
    is_json: bool,
    output: Path | None,
    report: Sequence[Path],
) -> int:
    """Measure, tell what was found, and return the exit code."""
    code, results = MEASURED, BenchResults(output)
    if report:
        results = BenchResults.merged(
            [json.loads(path.read_text(encoding="utf-8")) for path in report]
        )
    else:
        kind = Fields if is_fields else Streams
        name = kind.__name__.lower()
        swept = [Planned(f"{name}={n}", kind(n, rounds, prompt_words, max_tokens)) for n in streams]
        how = How(Objective(ttft_ms / 1e3, token_ms / 1e3), 0, repeats, is_warmed)
        try:
            servers = [server_of(each, key, model, is_in_tokens=is_in_tokens) for each in url]
            with Console(stderr=True).status("") as status:
                uvloop.run(sit(results, servers, loads or swept, how, status.update))
        except ChatError as error:
            click.echo(f"harmonium bench: {error}", err=True)
            return FAILED
        except KeyboardInterrupt:
            code = STOPPED
    if is_json:
        click.echo(json.dumps(results.as_json()))
    elif results.rows:
        for server in results.servers:
            click.echo(f"{server['model']} at {server['name']}")
        click.echo(f"\n{table(results.rows)}")
        for note in notes(results.rows, results.servers):
            click.echo(f"\n{note}")
    failed = any(
        group["failed"] for row in results.rows for group in row.get("groups", {}).values()
    )
    return code or (FAILED if failed else MEASURED)


def server_of(text: str, key: str | None, model: str | None, *, is_in_tokens: bool) -> Server:
    """Return the server of `[name=]url` with its first model, unless one was named; raises
    ChatError."""
    name, is_named, url = text.partition("=")
    if not is_named or "/" in name:
        name, url = "", text
    with Client(url, key) as client:
        name = name or client.url.partition("://")[2]
        return Server(name, client.url, model or client.first_model(), key or "", is_in_tokens)
