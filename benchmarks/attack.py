"""`make attack`: does one caller's body hold up everybody else?

Each attack's body is sent over and over, on two connections, for `--seconds`, to a server started
as users start it, while a probe asks for liveness every 20 ms and another caller reads a stream.
The server is good when liveness never waits longer than 100 ms, the other caller's p99 gap
between tokens is at most three times what it is without attacks, nothing of the other caller is
refused or breaks, no answer is a 5xx but the 503 that tells an attacker to come back later, and
SIGTERM still ends it. The last line is one JSON document.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from benchmarks.attack_bodies import Attack, known_attacks
from benchmarks.attack_probe import Window
from benchmarks.attack_random import random_attacks
from benchmarks.attack_server import ATTACKER, NEIGHBOUR, AttackedServer
from benchmarks.ending import end_as_by_ctrl_c

MOST_LIVE_GAP_S: Final = 0.1
MOST_GAP_RATIO: Final = 3.0
_ANSWER_WITHIN_S: Final = 30.0  # then the attacker leaves
_RECOVER_WITHIN_S: Final = 20.0  # then the server is started anew
_QUIET_S: Final = 0.5
_NUM_CONNECTIONS: Final = 2


@dataclass(frozen=True, slots=True)
class Result:
    """What one attack did."""

    name: str
    path: str
    num_bytes: int
    statuses: dict[str, int]  # answers by status; "0": none came in time, or no connection
    seconds: float  # to the slowest answer
    live_gap_s: float
    token_gap_p99_s: float
    num_tokens: int
    num_refused: int
    num_broken: int
    has_recovered: bool


class Prober:
    """The process that looks."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def window(self) -> Window:
        """What it saw since the last call."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        return Window(**json.loads(await self._process.stdout.readline()))


@asynccontextmanager
async def _probing(port: int) -> AsyncIterator[Prober]:
    module = ("-m", "benchmarks.attack_probe", str(port), NEIGHBOUR)
    process = await asyncio.create_subprocess_exec(
        sys.executable, *module, stdin=PIPE, stdout=PIPE, limit=2**24
    )
    try:
        yield Prober(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def measure(engine: str, attacks: Iterable[Attack], seconds: float) -> Report:
    """Start a server and attack it; a new one where the last does not recover."""
    waiting, report = list(attacks), Report(engine)
    while waiting:
        with tempfile.TemporaryDirectory(prefix="attack") as folder:
            server = AttackedServer(engine, Path(folder))
            try:
                server.wait_for_ready()
                async with _probing(server.port) as prober:
                    await asyncio.sleep(3)
                    await prober.window()
                    while waiting:
                        await _quiet(prober, report)
                        report.add(await _attack(server.port, prober, waiting.pop(0), seconds))
                        if not report.results[-1].has_recovered:
                            break
            finally:
                report.num_deaf += not await asyncio.to_thread(server.stop)
    return report


async def _quiet(prober: Prober, report: Report) -> None:
    await asyncio.sleep(_QUIET_S)
    report.quiet.append(await prober.window())


async def _attack(port: int, prober: Prober, attack: Attack, seconds: float) -> Result:
    body = await asyncio.to_thread(attack.make)
    await prober.window()
    statuses: Counter[str] = Counter()
    slowest_s = await asyncio.gather(
        *(_send(port, attack.path, body, seconds, statuses) for _ in range(_NUM_CONNECTIONS))
    )
    window, has_recovered = await _until_recovered(prober)
    return Result(
        attack.name,
        attack.path,
        len(body),
        dict(sorted(statuses.items())),
        max(slowest_s),
        window.live_gap_s,
        p99(window.token_gaps_s),
        len(window.token_gaps_s),
        window.num_refused,
        window.num_broken,
        has_recovered,
    )


async def _until_recovered(prober: Prober) -> tuple[Window, bool]:
    """All that is seen until liveness is answered at once; whether it ever was."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _RECOVER_WITHIN_S
    total = await prober.window()
    while loop.time() < until:
        await asyncio.sleep(0.2)
        window = await prober.window()
        total.live_gap_s = max(total.live_gap_s, window.live_gap_s)
        total.token_gaps_s += window.token_gaps_s
        total.num_refused += window.num_refused
        total.num_broken += window.num_broken
        if window.live_gap_s <= MOST_LIVE_GAP_S and not window.num_lost:
            return total, True
    return total, False


async def _send(port: int, path: str, body: bytes, seconds: float, statuses: Counter[str]) -> float:
    """Ask again and again; gives the seconds of the slowest answer."""
    loop = asyncio.get_running_loop()
    until, slowest_s = loop.time() + seconds, 0.0
    while loop.time() < until:
        begun = loop.time()
        try:
            async with asyncio.timeout(_ANSWER_WITHIN_S):
                status = await _ask(port, path, body)
        except (OSError, EOFError, TimeoutError):
            status = "0"
        statuses[status] += 1
        slowest_s = max(slowest_s, loop.time() - begun)
        await asyncio.sleep(0.05)
    return slowest_s


async def _ask(port: int, path: str, body: bytes) -> str:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nAuthorization: Bearer {ATTACKER}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head.encode())
        writer.write(body)
        answer = (await reader.readuntil(b"\r\n"))[9:12].decode()
        while await reader.read(1 << 20):
            pass
        return answer
    finally:
        writer.transport.abort()


class Report:
    """All results with one engine."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.results: list[Result] = []
        self.quiet: list[Window] = []
        self.num_deaf = 0  # servers that SIGTERM did not end

    def add(self, result: Result) -> None:
        """Take it and print its line."""
        self.results.append(result)
        flag = " " if self.is_harmless(result) else "!"
        answers = " ".join(f"{status}x{count}" for status, count in result.statuses.items())
        print(
            f"{flag} {result.name[:44]:44} {result.num_bytes / 1e6:6.2f} MB  "
            f"live {1000 * result.live_gap_s:6.0f} ms  p99 {1000 * result.token_gap_p99_s:6.0f} ms"
            f"  slowest {result.seconds:5.1f} s  {answers}",
            flush=True,
        )

    @property
    def quiet_p99_s(self) -> float:
        """The other caller's gap while nobody attacks."""
        return p99([gap for window in self.quiet for gap in window.token_gaps_s])

    def is_harmless(self, result: Result) -> bool:
        """Whether nobody but the attacker noticed."""
        return (
            result.live_gap_s <= MOST_LIVE_GAP_S
            and result.token_gap_p99_s <= MOST_GAP_RATIO * self.quiet_p99_s
            and not result.num_refused
            and not result.num_broken
            and result.has_recovered
            and all(status[0] not in "05" or status == "503" for status in result.statuses)
        )

    def document(self) -> dict[str, object]:
        """For machines."""
        answers = Counter[str]()
        for result in self.results:
            answers.update(result.statuses)
        return {
            "engine": self.engine,
            "num_attacks": len(self.results),
            "live_gap_s": max(result.live_gap_s for result in self.results),
            "token_gap_p99_s": max(result.token_gap_p99_s for result in self.results),
            "token_gap_p99_quiet_s": self.quiet_p99_s,
            "num_neighbour_refused": sum(result.num_refused for result in self.results),
            "num_neighbour_broken": sum(result.num_broken for result in self.results),
            "num_5xx": sum(n for status, n in answers.items() if status[0] == "5"),
            "statuses": dict(sorted(answers.items())),
            "num_deaf_to_sigterm": self.num_deaf,
            "harmful": [asdict(r) for r in self.results if not self.is_harmless(r)],
        }


def p99(values: Sequence[float]) -> float:
    """Of few values the largest."""
    return statistics.quantiles(values, n=100)[98] if len(values) > 100 else max(values, default=0)


def main() -> int:
    """Attack as the command line says; 1 when anything did harm."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attack", description=__doc__)
    parser.add_argument("--engines", nargs="+", choices=("scripted", "nano"), default=["scripted"])
    parser.add_argument("--seconds", type=float, default=2.0, help="of each attack")
    parser.add_argument("--random", type=int, default=40, help="how many of the generator's")
    parser.add_argument("--seed", type=int, default=1, help="of the generator")
    parser.add_argument("--only", default="", help="those with this in their name")
    given = parser.parse_args()
    end_as_by_ctrl_c()
    attacks = [*known_attacks(), *random_attacks(given.seed, given.random)]
    chosen = [attack for attack in attacks if given.only in f"{attack.name} {attack.path}"]
    reports = [
        asyncio.run(measure(engine, chosen, given.seconds)).document() for engine in given.engines
    ]
    print(json.dumps(reports))
    return int(any(report["harmful"] or report["num_deaf_to_sigterm"] for report in reports))


if __name__ == "__main__":
    sys.exit(main())
