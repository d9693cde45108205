"""Loads as users bring them, to any OpenAI-compatible server.

    python -m tools.benchmarks.serving --url http://127.0.0.1:8000 poisson=8 rate burst=400
    python -m tools.benchmarks.serving --url ours=http://a:8000 --url other=http://b:8000 --warm-up

A load is its name and first number; other fields follow after commas: agents=24,context=4000.

    poisson=RATE    arrivals a second for 20 s; lengths lognormal, median 400 in and 200 out
    rate[=FROM]     the highest Poisson rate at which the SLO holds
    agents=N        20,000 tokens of context each, five turns of 1,500 in and 150 out
    burst=N         all at once, 128 in and 384 out
    long=TOKENS     one prompt, twice
    beside=TOKENS   that prompt beside 32 streams: the gaps between their tokens meanwhile
    guided=N        plain streams alone, then beside as many that follow a JSON schema

Without loads: those of docs/engine.md, which need room for 120,000 tokens. Prompts are token ids.
With `--warm-up` each load first runs once with other prompts, for servers that compile kernels
when a shape first comes. Several servers take turns, load by load. `--report` shows earlier
results side by side. Standard library only (uvloop is used if it is installed).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from tools.benchmarks.serving.client import Server, first_model
from tools.benchmarks.serving.figures import Objective
from tools.benchmarks.serving.plot import write_plot
from tools.benchmarks.serving.search import Rate
from tools.benchmarks.serving.sitting import Planned, Results, sit
from tools.benchmarks.serving.table import table
from tools.benchmarks.serving.traffic import LOADS

DEFAULT: Final = (
    "poisson=8", "poisson=24", "poisson=40", "rate", "agents=24", "agents=64", "burst=400",
    "long=8000", "long=32000", "long=64000", "long=120000", "beside=100000", "guided=16",
)  # fmt: skip


def planned(text: str) -> Planned:
    """The load that `name=number,field=value,...` names; raises ArgumentTypeError."""
    name, _, rest = text.partition("=")
    make: Any = Rate if name == "rate" else LOADS.get(name)
    if make is None:
        raise argparse.ArgumentTypeError(f"{name} is none of {', '.join([*LOADS, 'rate'])}")
    kinds = {each.name: int if each.type == "int" else float for each in fields(make)}
    first, *others = rest.split(",") if rest else [""]
    pairs = [(next(iter(kinds)), first)] if first else []
    pairs += [(key, value) for key, _, value in (other.partition("=") for other in others)]
    try:
        return Planned(text, make(**{key: kinds[key](value) for key, value in pairs}))
    except KeyError as error:
        known = ", ".join(kinds)
        raise argparse.ArgumentTypeError(f"{text}: {error} is none of {known}") from None
    except (TypeError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from None


def server(text: str, arguments: argparse.Namespace) -> Server:
    """The server of `[name=]url`; its first model, unless one was named."""
    name, found, url = text.partition("=")
    if not found or "/" in name:
        name, url = text.partition("://")[2], text
    url = url.rstrip("/").removesuffix("/v1")
    model = arguments.model or first_model(url, arguments.api_key)
    return Server(name, url, model, arguments.api_key, json.loads(arguments.extra))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.benchmarks.serving",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("loads", nargs="*", type=planned, metavar="LOAD")
    parser.add_argument("--url", action="append", default=[], metavar="[NAME=]URL")
    parser.add_argument("--model", help="default: the first that the server lists")
    parser.add_argument("--api-key", default=os.environ.get("OPENAI_API_KEY", ""))
    parser.add_argument("--extra", default='{"ignore_eos": true}', help="JSON fields of each body")
    parser.add_argument(
        "--warm-up", action="store_true", help="run each load once before it counts"
    )
    parser.add_argument("--ttft-ms", type=float, default=500, help="the SLO's time to first token")
    parser.add_argument("--token-ms", type=float, default=25, help="the SLO's time per token")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="where results go, after each load")
    parser.add_argument("--plot", type=Path, help="an SVG")
    parser.add_argument("--report", type=Path, nargs="+", help="show these results; asks nothing")
    given = parser.parse_args()
    if bool(given.url) == bool(given.report):
        parser.error("give --url, or --report")
    return given


def main() -> None:
    given = _arguments()
    if given.report:
        results = Results.merged([json.loads(path.read_text()) for path in given.report])
    else:
        try:
            servers = [server(text, given) for text in given.url]
        except OSError as error:
            raise SystemExit(f"The server's models cannot be read: {error}") from error
        objective = Objective(given.ttft_ms / 1e3, given.token_ms / 1e3)
        loads = given.loads or [planned(text) for text in DEFAULT]
        results = Results(servers, objective, given.json)
        _run(sit(results, servers, loads, objective, given.seed, is_warmed=given.warm_up))
    print(table(results.rows))
    if given.plot:
        write_plot(given.plot, results.rows)


def _run(coroutine: Any) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(coroutine)
    else:
        uvloop.run(coroutine)


if __name__ == "__main__":
    main()
