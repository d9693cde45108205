"""Front and workers by the real library: deaths, drains, joins, disconnects (make test-dynamo)."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from cryptography import x509

from engines.base import EngineRequest, SamplingParams
from engines.dynamo.supervisor import WorkerSupervisor
from engines.errors import (
    InvalidGrammar,
    OutOfMemory,
    PromptTooLong,
    QueueFull,
    RequestFailed,
    RequestQuarantined,
)
from engines.fleet import Fleet
from engines.grammar.tree import Regex
from engines.process.client import EngineClient
from engines.recovery.crash_records import CrashRecords
from engines.recovery.guarded import GuardedEngine
from tests.auth.test_tls import Authority
from tests.engines.contract.contenders import Checkpoint, write_checkpoint
from tests.engines.dynamo.deployment import (
    ON_LOOPBACK,
    PYTHON,
    SCRIPT,
    Deployment,
    deployment,
    until,
    until_capacity,
)
from tests.service.run.serving import free_port

pytestmark = pytest.mark.dynamo

CUTS = int(os.environ.get("TEST_CUTS", "5"))  # of each kind of answer
STREAMS_S = float(os.environ.get("TEST_STREAMS_S", "20"))
POISON = 666
PROMPT = tuple(range(100, 120))


@pytest.fixture
async def deployed() -> AsyncIterator[Deployment]:
    async with deployment() as started:
        yield started


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@dataclass
class Answer:
    """What was shown of an answer, and how much of it before each restart."""

    ids: tuple[int, ...] = ()
    cuts: list[int] = field(default_factory=list)


async def read(engine: Any, request: EngineRequest, seen: list[int] | None = None) -> Answer:
    """Read an answer; `seen` is appended its tokens as they come."""
    answer, num_restarts = Answer(), 0
    async for event in engine.generate(request):
        if event.num_restarts > num_restarts:
            num_restarts = event.num_restarts
            answer.cuts.append(len(answer.ids))
        answer.ids += event.token_ids
        if seen is not None:
            seen += event.token_ids
    return answer


def request_of(max_tokens: int = 100, prompt: tuple[int, ...] = PROMPT, **more: Any) -> Any:
    sampling = SamplingParams(max_tokens, **{"temperature": 0.0, **more})
    return EngineRequest(f"r{max_tokens}", prompt, sampling)


def script(num: int) -> tuple[int, ...]:
    return tuple(SCRIPT[i % len(SCRIPT)] for i in range(num))


def kill(worker: WorkerSupervisor) -> None:
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)


async def running_at(worker: WorkerSupervisor) -> EngineClient:
    """A client of a worker's engine, to see what it runs."""
    client = worker.engine.client()
    await client.start()
    return client


KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seed": {"temperature": 1.0, "seed": 5},
    "penalties": {"presence_penalty": 0.8, "frequency_penalty": 0.7, "repetition_penalty": 1.2},
    "grammar": {"temperature": 1.0, "seed": 6, "grammar": Regex("[a-f ]{60,80}")},
}


@pytest.mark.parametrize("kind", list(KINDS))
async def test_a_killed_workers_answers_go_on_as_the_engine_gives_them(
    deployed: Deployment, checkpoint: Checkpoint, kind: str
) -> None:
    """The tokens shown before the cut, then exactly what the engine gives for them."""
    spec = checkpoint.spec("native", {"num_threads": 1})
    workers = [await deployed.worker(spec) for _ in range(2)]
    engines = [await running_at(worker) for worker in workers]  # they outlive their workers
    front = await deployed.front()
    wishes = dict(KINDS[kind])
    grammar = wishes.pop("grammar", None)
    num_cut = 0
    for number in range(4 * CUTS):
        await until_capacity(front, 16)
        prompt = tuple((number * 7 + i) % 256 for i in range(20))
        request = replace(
            request_of(60, prompt, **wishes),
            grammar=grammar,
            stop_token_ids=(1,) if grammar else (),
        )
        answer = await read_cut(front, request, 3 + number % 20, workers, engines)
        for cut in answer.cuts:
            again = replace(request, generated_token_ids=answer.ids[:cut])
            assert answer.ids == answer.ids[:cut] + (await read(engines[0], again)).ids
        num_cut += len(answer.cuts)
        if num_cut == CUTS:
            break
    for engine in engines:
        await engine.stop()
    assert num_cut == CUTS


async def read_cut(
    front: EngineClient,
    request: EngineRequest,
    at: int,
    workers: list[WorkerSupervisor],
    engines: list[EngineClient],
) -> Answer:
    """Read an answer whose worker is killed after so many tokens."""
    seen: list[int] = []
    reading = asyncio.create_task(read(front, request, seen))
    await until(lambda: len(seen) >= at or reading.done())
    # All are asked before one is killed: the answer soon runs at another one.
    found = [(await engine.stats()).num_running for engine in engines]
    for worker, num_running in zip(workers, found, strict=True):
        if num_running:
            kill(worker)
            break  # it goes on at the other, which is not to die as well
    return await reading


async def test_a_request_that_kills_its_worker_is_quarantined_at_the_second_death(
    deployed: Deployment,
) -> None:
    faults = [{"token": POISON, "kind": "kill", "after": 3}]
    workers = [await deployed.worker(faults=faults) for _ in range(3)]
    front = await deployed.front()
    await until_capacity(front, 24)
    others = [asyncio.create_task(read(front, request_of(150))) for _ in range(6)]
    with pytest.raises(RequestQuarantined):
        await read(front, request_of(prompt=(POISON, 1)))
    assert [await each for each in others] == [
        Answer(script(150), each.result().cuts) for each in others
    ]
    assert sum(worker.engine.num_restarts for worker in workers) == 2
    with pytest.raises(RequestQuarantined):
        await read(front, request_of(prompt=(POISON, 1)))
    assert sum(worker.engine.num_restarts for worker in workers) == 2
    assert (await read(front, request_of(5))).ids == script(5)


async def test_streams_outlive_kills_drains_and_joins(deployed: Deployment) -> None:
    """8 streams all the time: no failed answer, and the capacity is that of the workers."""
    workers = [await deployed.worker() for _ in range(2)]
    front = await deployed.front()
    await until_capacity(front, 16)
    end_s = time.monotonic() + STREAMS_S
    num_answers = 0

    async def stream() -> None:
        nonlocal num_answers
        while time.monotonic() < end_s:
            assert (await read(front, request_of(120))).ids == script(120)
            num_answers += 1

    streams = asyncio.gather(*(stream() for _ in range(8)))
    while time.monotonic() < end_s - 5 and not streams.done():
        killed = workers[0].pid
        kill(workers[0])
        await until(lambda: workers[0].pid not in (None, killed))  # noqa: B023
        await until_capacity(front, 16)  # its parent started another
        await workers.pop().stop(30.0)
        await until_capacity(front, 8)
        workers.append(await deployed.worker())
        await until_capacity(front, 16, within_s=2.0)
    await streams
    assert num_answers > 8


async def test_a_worker_that_ends_finishes_its_answers(deployed: Deployment) -> None:
    workers = [await deployed.worker() for _ in range(2)]
    front = await deployed.front()
    await until_capacity(front, 16)
    seen: list[int] = []
    answers = [asyncio.create_task(read(front, request_of(150), seen)) for _ in range(6)]
    await until(lambda: len(seen) > 20)
    await workers[0].stop(30.0)
    assert [await each for each in answers] == [Answer(script(150))] * 6  # none was restarted
    await until_capacity(front, 8)


async def test_a_worker_whose_engine_dies_leaves_and_comes_back(deployed: Deployment) -> None:
    workers = [await deployed.worker() for _ in range(2)]
    front = await deployed.front()
    await until_capacity(front, 16)
    pid = workers[0].engine.pid
    assert pid is not None
    answers = [asyncio.create_task(read(front, request_of(100))) for _ in range(6)]
    await asyncio.sleep(0.3)
    os.kill(pid, signal.SIGKILL)
    assert all([(await each).ids == script(100) for each in answers])
    await until_capacity(front, 16)


async def test_without_any_worker_the_front_is_dead_and_goes_on_with_the_next(
    deployed: Deployment,
) -> None:
    worker = await deployed.worker()
    front = await deployed.front()
    guarded = GuardedEngine(
        Fleet([front]), CrashRecords(front.folder / "suspects", 600.0), restart_timeout_s=60.0
    )
    seen: list[int] = []
    reading = asyncio.create_task(read(guarded, request_of(200), seen))
    await until(lambda: len(seen) > 20)
    await worker.stop(0.0)
    await until(lambda: not front.is_ready, within_s=60.0)
    await deployed.worker()
    assert (await reading).ids == script(200)


async def test_a_closed_answer_frees_its_worker_at_once(deployed: Deployment) -> None:
    worker = await deployed.worker()
    front, engine = await deployed.front(), await running_at(worker)
    async with aclosing(front.generate(request_of(4000))) as events:
        await anext(events)
        assert (await engine.stats()).num_running == 1
    begun_s = time.monotonic()
    while (await engine.stats()).num_running:
        await asyncio.sleep(0.005)
    assert time.monotonic() - begun_s < 0.2
    await engine.stop()


async def test_errors_of_a_worker_keep_their_class(
    deployed: Deployment, checkpoint: Checkpoint
) -> None:
    await deployed.worker(fail_at=5, faults=[{"token": POISON, "kind": "memory", "after": 2}])
    front = await deployed.front()
    with pytest.raises(RequestFailed, match="fails after 5 tokens"):
        await read(front, request_of())
    with pytest.raises(OutOfMemory):
        await read(front, request_of(prompt=(POISON,)))
    with pytest.raises(PromptTooLong, match="context length is 4096"):
        await read(front, request_of(prompt=PROMPT * 300))
    async with deployment() as other:
        await other.worker(checkpoint.spec("native", {"num_threads": 1}))
        with pytest.raises(InvalidGrammar):
            await read(await other.front(), replace(request_of(), grammar=Regex("[")))


async def test_a_full_queue_and_a_shorter_context_are_the_fronts(deployed: Deployment) -> None:
    await deployed.worker()
    front = await deployed.front(max_num_waiting=1, max_model_len=64)
    assert front.info.max_model_len == 64
    with pytest.raises(PromptTooLong):
        await read(front, request_of(prompt=PROMPT * 4))
    answers = [asyncio.create_task(read(front, request_of(40))) for _ in range(10)]
    found = await asyncio.gather(*answers, return_exceptions=True)
    assert any(isinstance(each, QueueFull) for each in found)


async def test_they_listen_on_the_loopback_alone(deployed: Deployment) -> None:
    """As DYN_TCP_RPC_HOST and DYN_TCP_RESPONSE_STREAM_HOST say."""
    await deployed.worker()
    front = await deployed.front()
    await read(front, request_of(5))
    assert {address.ip for address in listening()} == {"127.0.0.1"}


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """Has Dynamo use mutual TLS; what a client with a certificate connects with."""
    authority = Authority(tmp_path, "deployment")
    server = authority.issue("server", x509.DNSName("harmonium"), is_client=False)
    client = authority.issue("client")
    for name, path in {
        "CERT": server[0],
        "KEY": server[1],
        "CA_CERT": authority.path,
        "CLIENT_CERT": client[0],
        "CLIENT_KEY": client[1],
        "CLIENT_CA_CERT": authority.path,
    }.items():
        monkeypatch.setenv(f"DYN_TCP_TLS_{name}_PATH", str(path))
    monkeypatch.setenv("DYN_TCP_TLS_SERVER_NAME", "harmonium")
    context = ssl.create_default_context(cafile=authority.path)
    context.load_cert_chain(*client)
    return context


def listening() -> list[Any]:
    """The addresses on which front and workers listen."""
    return [
        connection.laddr
        for process in psutil.Process().children(recursive=True)
        for connection in process.net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
    ]


def is_let_in(address: Any, context: ssl.SSLContext) -> bool:
    """Whether a connection lasts: the server closes one when it has seen no certificate."""
    with (
        socket.create_connection(address, timeout=5) as plain,
        context.wrap_socket(plain, server_hostname="harmonium") as connection,
    ):
        connection.settimeout(0.5)
        try:
            return bool(connection.recv(1))
        except TimeoutError:
            return True
        except (ssl.SSLError, ConnectionError):
            return False


async def test_with_tls_front_and_worker_talk_to_those_with_a_certificate_alone(
    tls: ssl.SSLContext, deployed: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await deployed.worker()
    front = await deployed.front()
    assert (await read(front, request_of(100))).ids == script(100)
    stranger = ssl.create_default_context()
    stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE
    addresses = listening()
    assert len(addresses) >= 2  # the worker's for requests, and theirs for answers
    for address in addresses:
        assert await asyncio.to_thread(is_let_in, address, tls)
        assert not await asyncio.to_thread(is_let_in, address, stranger)
    for name in [name for name in os.environ if name.startswith("DYN_TCP_TLS")]:
        monkeypatch.delenv(name)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5):
            await deployed.front()
    assert worker.engine.num_restarts == 0
    assert (await read(front, request_of(100))).ids == script(100)


@pytest.fixture
def etcd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    program = shutil.which("etcd")
    if program is None:
        pytest.skip("there is no etcd on PATH: apt-get install etcd-server")
    client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    command = [program, "--data-dir", str(tmp_path / "etcd"), "--log-level", "error"]
    for name, url in (("client", client), ("peer", peer)):
        command += [f"--listen-{name}-urls", url]
    command += ["--advertise-client-urls", client, "--initial-advertise-peer-urls", peer]
    command += ["--initial-cluster", f"default={peer}"]
    monkeypatch.setenv("ETCD_ENDPOINTS", client)
    process = subprocess.Popen(command)
    yield
    process.kill()
    process.wait()


async def test_etcd_finds_workers_too(etcd: None) -> None:
    async with deployment("etcd") as deployed:
        workers = [await deployed.worker() for _ in range(2)]
        front = await deployed.front()
        await until_capacity(front, 16)
        answers = [asyncio.create_task(read(front, request_of(100))) for _ in range(4)]
        await asyncio.sleep(0.3)
        kill(workers[0])
        assert all([(await each).ids == script(100) for each in answers])
        await workers[1].stop(10.0)


def test_the_commands_serve_nano(tmp_path: Path, nano_cache: Path) -> None:
    """`harmonium dynamo-worker` and `harmonium serve`, as docs/scale.md has them."""
    import httpx

    port = free_port()
    environment = {
        **os.environ,
        **ON_LOOPBACK,
        "DYN_FILE_KV": str(tmp_path / "kv"),
        "NIM_DYNAMO_DISCOVERY": "file",
        "NIM_DYNAMO_ENDPOINT": "test.backend.generate",
        "NIM_ENGINE_PYTHON": f"dynamo={PYTHON}",
        "NIM_MODEL_NAME": "nano",
        "NIM_CACHE_PATH": str(nano_cache),
        "NIM_AUTH": "off",
    }
    command = [sys.executable, "-m", "service"]
    processes = [
        subprocess.Popen([*command, "dynamo-worker"], env=environment),
        subprocess.Popen([*command, "serve", "--server-port", str(port)], env=environment),
    ]
    body: dict[str, Any] = {
        "model": "nano",
        "messages": [{"role": "user", "content": "Hello!"}],
        "seed": 1,
        "max_completion_tokens": 40,
    }
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            deadline_s = time.monotonic() + 180
            while time.monotonic() < deadline_s:
                try:
                    if client.get("/v1/health/ready").status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                time.sleep(0.2)
            answered = client.post("/v1/chat/completions", json=body)
            assert answered.status_code == 200, answered.text
            answer = answered.json()
            assert "nano" in answer["choices"][0]["message"]["content"]
            refused = client.post("/v1/chat/completions", json={**body, "top_logprobs": 999})
            assert refused.status_code == 400
            assert 'engine="dynamo"' in client.get("/v1/metrics").text
    finally:
        for process in reversed(processes):
            process.terminate()
        codes = [process.wait(timeout=60) for process in processes]
    assert codes == [0, 0]
