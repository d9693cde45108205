"""`python -m tools.benchmarks overload`: three times more requests than can be answered.

The whole server on a loopback socket: an API worker and, in a process of its own, an engine of
a fixed rate that generates scripted tokens. Capacity is what as many clients as keep it busy
get out of it, each with one request after the other. Then requests arrive by themselves, as a
Poisson process, at that rate and at three times that rate; nobody asks again. Goodput is the
tokens of complete answers a second; TTFT is of the answers that were begun. Beside the flood
another caller asks now and then; none of that may be refused.

`--engine nano --prompt-words 850 --max-wait 2` asks for what costs prefill: each prompt of that
many words, no two alike, read by the native engine on the cores that the API and the clients have.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import socket
import statistics
import string
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from engines.process.supervisor import EngineSupervisor
from engines.spec import EngineSpec
from parts.terminal.bench.exchange import Connector, Server, TimedAnswer, all_ended, parse
from service.harmony import vocabulary
from service.run.messages import ApiWorkerSpec, EngineNews
from service.run.pool import WorkerPool
from service.run.startup import prepare
from service.settings.settings import Settings, load
from tools.benchmarks.ending import end_as_by_ctrl_c

OVERLOAD: Final = 3
RETRY_S: Final = 1.0  # a refused client of the closed loop asks again, as Retry-After says
NUM_SEQS, STEP_S = 16, 0.02  # the engine generates at most 800 tokens a second
SHORTEST, LONGEST = 5, 45  # tokens of an answer
WARM_UP_S: Final = 4.0  # of each run; not counted
CHAT: Final = "/v1/chat/completions"
KEYS: Final = ("caller-of-very-many", "caller-of-but-few")  # who floods, and who asks now and then
FEW_PER_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Case:
    """What serves, and what is asked of it."""

    engine: str = "scripted"  # or nano
    num_words: int = 0  # of a prompt; 0: a few
    max_wait_s: float = 1.0  # NIM_MAX_QUEUE_WAIT_S; 30 by default, which would need longer runs

    def body(self, chance: random.Random) -> bytes:
        """A request that nobody else sends, where its prompt is long."""
        words = ["Tell me more."] * chance.randint(1, 20)
        if self.num_words:
            words = chance.choices(string.ascii_lowercase, k=self.num_words)  # a token each
        request = {
            "model": "nano",
            "messages": [{"role": "user", "content": " ".join(words)}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_completion_tokens": chance.randint(SHORTEST, LONGEST),
        }
        return json.dumps(request).encode()


@dataclass(frozen=True, slots=True)
class Figures:
    """One run, without its beginning."""

    load: str
    offered_per_s: float  # requests
    goodput_tokens_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    num_answered: int
    num_refused: int
    num_broken: int  # neither answered nor refused

    @classmethod
    def of(cls, load: str, answers: Sequence[TimedAnswer], start: float, end: float) -> Figures:
        """Count what ended, and time what was asked, between the two times."""
        asked = [answer for answer in answers if start <= answer.asked_at < end]
        ended = [a for a in answers if a.is_whole and start <= a.ended_at < end]
        times = sorted(a.ttft_s for a in asked if a.ttft_s is not None) or [math.nan]
        return cls(
            load,
            len(asked) / (end - start),
            sum(answer.num_tokens for answer in ended) / (end - start),
            statistics.median(times),
            times[int(0.99 * len(times))],
            sum(answer.is_whole for answer in asked),
            sum(answer.is_rejected for answer in asked),
            sum(answer.is_failed for answer in asked),
        )


async def measure(case: Case, seconds: float) -> list[Figures]:
    """Capacity, then both rates."""
    async with _server(case) as port:
        full = await closed_loop(case, port, 2 * NUM_SEQS, seconds)
        rate = full.num_answered / seconds
        at_capacity = await open_loop(case, port, "1x", rate, seconds)
        few = min(FEW_PER_S, rate / 4)
        over, other = await asyncio.gather(
            open_loop(case, port, f"{OVERLOAD}x", OVERLOAD * rate, seconds),
            open_loop(case, port, "other", few, seconds, KEYS[1]),
        )
        return [full, at_capacity, over, other]


async def closed_loop(case: Case, port: int, num_clients: int, seconds: float) -> Figures:
    """Each client asks when its last answer has ended; the rate is that of complete answers."""
    connector, answers = connector_to(port, KEYS[0]), []
    start = time.perf_counter() + WARM_UP_S
    end = start + seconds

    async def client(number: int) -> None:
        lengths = random.Random(number)
        while time.perf_counter() < end:
            answers.append(parse(await connector.ask(CHAT, case.body(lengths))))
            if answers[-1].status != 200:
                await asyncio.sleep(RETRY_S)

    await asyncio.gather(*(client(number) for number in range(num_clients)))
    return Figures.of("capacity", answers, start, end)


async def open_loop(
    case: Case, port: int, load: str, per_s: float, seconds: float, key: str = KEYS[0]
) -> Figures:
    """Requests come whether or not others are answered."""
    connector, chance = connector_to(port, key), random.Random(load)
    due = time.perf_counter()
    start = due + WARM_UP_S
    end = start + seconds
    asking = []
    while due < end:
        await asyncio.sleep(due - time.perf_counter())
        asking.append(connector.start(CHAT, case.body(chance)))
        due += chance.expovariate(per_s)
    await all_ended(asking)
    return Figures.of(load, [parse(exchange) for exchange in asking], start, end)


def connector_to(port: int, key: str) -> Connector:
    return Connector(Server("", f"http://127.0.0.1:{port}", "nano", key))


@asynccontextmanager
async def _server(case: Case) -> AsyncIterator[int]:
    """Run an engine process and an API worker; gives the port."""
    with (
        tempfile.TemporaryDirectory(prefix="bench") as folder,
        socket.create_server(("127.0.0.1", 0), backlog=1024) as listener,
    ):
        settings = _settings(case, Path(folder))
        launch = prepare(settings)
        supervisor = EngineSupervisor(_scripted() if case.engine == "scripted" else launch.spec)
        spec = ApiWorkerSpec(
            number=0,
            settings=settings,
            launch=launch,
            engine_addresses=(supervisor.address,),
            listener_fd=listener.fileno(),
        )
        pool = WorkerPool(spec, 1, lambda: EngineNews((supervisor.reason,)))
        try:
            await supervisor.start()
            await pool.start()
            yield listener.getsockname()[1]
        finally:
            await pool.kill()
            await supervisor.stop()


def _scripted() -> EngineSpec:
    script = [vocabulary.CHANNEL, *vocabulary.encode_text("final"), vocabulary.MESSAGE]
    script += vocabulary.encode_text("word " * LONGEST)
    options = {"script": script, "step_s": STEP_S, "max_num_seqs": NUM_SEQS}
    return EngineSpec("tests.fake", options)


def _settings(case: Case, folder: Path) -> Settings:
    chosen = {"model_name": "nano", "cache_path": folder / "cache", "log_level": "ERROR"}
    return load({**chosen, "max_queue_wait_s": case.max_wait_s, "api_keys": ",".join(KEYS)})


def verdict(figures: Sequence[Figures]) -> dict[str, Any]:
    """The two figures that count, and whether they are good."""
    full, at_capacity, over, other = figures
    goodput = (over.goodput_tokens_s + other.goodput_tokens_s) / full.goodput_tokens_s
    ttft = over.ttft_p99_s / at_capacity.ttft_p99_s
    num_wronged = other.num_refused + sum(run.num_broken for run in figures)
    is_good = goodput >= 0.9 and ttft <= 2 and not num_wronged
    return {"goodput_of_capacity": goodput, "ttft_p99_ratio": ttft, "is_good": is_good}


def overload_figures(seconds: float = 20, case: Case | None = None) -> tuple[float, float]:
    """Print all runs; gives goodput over capacity, and TTFT p99 over that of the 1x load."""
    figures = asyncio.run(measure(case or Case(), seconds))
    print("load      offered  goodput  TTFT p50  TTFT p99  answered  refused  broken")
    for run in figures:
        print(
            f"{run.load:8}  {run.offered_per_s:5.1f}/s  {run.goodput_tokens_s:3.0f} t/s  "
            f"{run.ttft_p50_s:6.2f} s  {run.ttft_p99_s:6.2f} s  {run.num_answered:8}  "
            f"{run.num_refused:7}  {run.num_broken:6}"
        )
    found = verdict(figures)
    print(json.dumps({"runs": [asdict(run) for run in figures], **found}))
    return found["goodput_of_capacity"], found["ttft_p99_ratio"]


def main() -> None:
    """Run it alone, for as long as asked."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.benchmarks.overload", description=__doc__
    )
    parser.add_argument("--seconds", type=float, default=20, help="of each run")
    parser.add_argument("--engine", choices=("scripted", "nano"), default="scripted")
    parser.add_argument("--prompt-words", type=int, default=0, help="0: 2 to 60 tokens")
    parser.add_argument("--max-wait", type=float, default=1.0, help="NIM_MAX_QUEUE_WAIT_S")
    given = parser.parse_args()
    end_as_by_ctrl_c()
    overload_figures(given.seconds, Case(given.engine, given.prompt_words, given.max_wait))


if __name__ == "__main__":
    main()
