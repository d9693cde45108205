"""`make attack`: does one caller's body hold up everybody else?

Each attack's body is sent over and over, on two connections, for `--seconds`, to a server started
as users start it, while a probe asks for liveness every 20 ms and another caller reads a stream.
The server is good when liveness never waits longer than 100 ms, the other caller's p99 gap
between tokens is at most three times what it is without attacks, nothing of the other caller is
refused or breaks, no answer is a 5xx but the 503 that tells an attacker to come back later, none
is missing, the API processes grow by less than 256 MB, and SIGTERM still ends it. Engine `wide`
answers 256 requests at once and is attacked by connections: tiny chunks, pipelined requests,
streams that nobody reads. Engine `ports` is attacked by strangers at HTTP's port and at those of
K/V events: its API and engine processes may grow by 50 MB, and the log by 100 warnings. A row
that does harm runs three times and is judged by its
medians. A body that is the work of a thousand plain requests may lengthen the gaps by half more
than plain requests do, sent one by one on as many connections as the engine has places: whoever
fills a small engine makes its steps longer. How much CPU time the longest turn of each process's
loop took is printed too: what is below 50 ms will do no harm on a busier machine either. The last
line is one JSON document.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

from tests.attack.bodies import Attack, known_attacks
from tests.attack.connections import ConnectionAttack, connection_attacks
from tests.attack.probe import Window
from tests.attack.random_bodies import random_attacks
from tests.attack.report import MOST_GROWTH_BYTES, MOST_LIVE_GAP_S, Report, Row, Run, p99
from tests.attack.server import ATTACKER, ENGINES, NEIGHBOUR, AttackedServer
from tests.attack.stored import StoredAttack, stored_attacks
from tests.attack.strangers import MOST_GROWTH_BYTES as STRANGERS_BYTES
from tests.attack.strangers import StrangerAttack, fill_cache, stranger_attacks
from tools.benchmarks.ending import end_as_by_ctrl_c

# Then the attacker leaves. A request waits in the queue for up to NIM_MAX_QUEUE_WAIT_S (30), and
# two of a thousand prompts of 9 kB are 80 s of work for nano.
_ANSWER_WITHIN_S: Final = 240.0
_RECOVER_WITHIN_S: Final = 20.0  # then the server is started anew
_WARM_UP_S: Final = 3.0
_QUIET_S: Final = 0.3  # before each run: what is usual for the other caller
_MOST_RUNS: Final = 3
_NUM_CONNECTIONS: Final = 2
_NUM_ORDINARY: Final = 32  # what both engines that get bodies run at once
_ORDINARY_S: Final = 3.0
_LOOK_S: Final = 0.25  # between two looks at the memory

AnyAttack = Attack | ConnectionAttack | StoredAttack


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
    module = ("-m", "tests.attack.probe", str(port), NEIGHBOUR)
    process = await asyncio.create_subprocess_exec(
        sys.executable, *module, stdin=PIPE, stdout=PIPE, limit=2**24
    )
    try:
        yield Prober(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def measure(engine: str, attacks: Iterable[AnyAttack], seconds: float) -> Report:
    """Start a server and attack it; a new one where the last does not recover."""
    waiting, report = list(attacks), Report(engine)
    while waiting:
        with tempfile.TemporaryDirectory(prefix="attack") as folder:
            server = AttackedServer(engine, Path(folder))
            try:
                server.wait_for_ready()
                if engine == "ports":
                    await fill_cache(server.port)
                async with _probing(server.port) as prober:
                    await asyncio.sleep(_WARM_UP_S)
                    await prober.window()
                    await asyncio.sleep(_WARM_UP_S)
                    report.quiet.append(await prober.window())
                    has_recovered = True
                    while waiting and has_recovered:
                        attack = waiting.pop(0)
                        has_recovered = await _row(server, prober, attack, seconds, report)
            finally:
                report.num_deaf += not await asyncio.to_thread(server.stop)
    return report


async def _row(
    server: AttackedServer, prober: Prober, attack: AnyAttack, seconds: float, report: Report
) -> bool:
    """Attack, up to three times while that seems to do harm; whether the server recovered."""
    body, path = b"", attack.path
    if isinstance(attack, Attack):
        body = await asyncio.to_thread(attack.make)
    elif isinstance(attack, StoredAttack):
        body, path = await asyncio.to_thread(attack.make, server.port, server.responses)
    row = Row(attack.name, attack.path, len(body))
    report.rows.append(row)
    for _ in range(_MOST_RUNS):
        await asyncio.sleep(_QUIET_S)
        report.quiet.append(await prober.window())
        run = await _attack(server, prober, attack, path, body, seconds)
        row.runs.append(run)
        if isinstance(attack, Attack) and attack.ordinary and row.harm(report.usual_s):
            ordinary = await asyncio.to_thread(attack.ordinary)
            row.ordinary_p99s_s.append(await _beside(server, prober, attack.path, ordinary))
        print(row.line(run, report.usual_s), flush=True)
        if not row.harm(report.usual_s) or not run.has_recovered:
            break
    return row.runs[-1].has_recovered


async def _attack(
    server: AttackedServer,
    prober: Prober,
    attack: AnyAttack,
    path: str,
    body: bytes,
    seconds: float,
) -> Run:
    server.meters.take()
    statuses: Counter[str] = Counter()
    is_strange = isinstance(attack, StrangerAttack)
    num_warnings = server.num_warnings() if is_strange else 0
    before = most = server.api_bytes(with_engine=is_strange)
    send: Callable[[int, float, Counter[str]], Awaitable[float]]
    if isinstance(attack, ConnectionAttack):
        num_senders, send = 1, attack.run
    else:
        num_senders, send = _NUM_CONNECTIONS, partial(_send, path=path, body=body)
    port = server.ports[attack.at if isinstance(attack, StrangerAttack) else "api"]
    attacking = asyncio.gather(*(send(port, seconds, statuses) for _ in range(num_senders)))
    while not attacking.done():
        await asyncio.wait((attacking,), timeout=_LOOK_S)
        most = max(most, server.api_bytes(with_engine=is_strange))
    window, has_recovered = await _until_recovered(prober)
    return Run(
        dict(sorted(statuses.items())),
        max(attacking.result()),
        window.live_gap_s,
        p99(window.token_gaps_s),
        window.num_refused,
        window.num_broken,
        has_recovered,
        server.meters.take(),
        most - before,
        STRANGERS_BYTES if is_strange else MOST_GROWTH_BYTES,
        server.num_warnings() - num_warnings if is_strange else 0,
    )


async def _beside(server: AttackedServer, prober: Prober, path: str, body: bytes) -> float:
    """The other caller's p99 gap beside plain requests on as many connections as there are
    places, in seconds."""
    await prober.window()
    send = partial(_send, path=path, body=body, pause_s=0.0)
    senders = (send(server.port, _ORDINARY_S, Counter()) for _ in range(_NUM_ORDINARY))
    await asyncio.gather(*senders)
    return p99((await prober.window()).token_gaps_s)


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


async def _send(
    port: int,
    seconds: float,
    statuses: Counter[str],
    *,
    path: str,
    body: bytes,
    pause_s: float = 0.05,
) -> float:
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
        await asyncio.sleep(pause_s)
    return slowest_s


async def _ask(port: int, path: str, body: bytes) -> str:
    head = (
        f"{'POST' if body else 'GET'} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
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


def main() -> int:
    """Attack as the command line says; 1 when anything did harm."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=["scripted"])
    parser.add_argument("--seconds", type=float, default=1.0, help="of each attack")
    parser.add_argument("--random", type=int, default=40, help="how many of the generator's")
    parser.add_argument("--seed", type=int, default=1, help="of the generator")
    parser.add_argument("--only", default="", help="those with this in their name")
    given = parser.parse_args()
    end_as_by_ctrl_c()
    attacks: list[AnyAttack] = [
        *known_attacks(),
        *stored_attacks(),
        *random_attacks(given.seed, given.random),
    ]
    reports = []
    for engine in given.engines:
        of_engine: list[AnyAttack] = attacks
        if engine in ("wide", "ports"):
            of_engine = [*(connection_attacks() if engine == "wide" else stranger_attacks())]
        chosen = [each for each in of_engine if given.only in f"{each.name} {each.path}"]
        report = asyncio.run(measure(engine, chosen, given.seconds))
        print(*report.summary(), sep="\n", flush=True)
        reports.append(report)
    print(json.dumps([report.document() for report in reports]))
    return int(any(report.harmful() or report.num_deaf for report in reports))


if __name__ == "__main__":
    sys.exit(main())
