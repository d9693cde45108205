"""Who can talk to front and workers by the real library, and how they meet (make test-dynamo)."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from cryptography import x509

from tests.auth.test_tls import Authority
from tests.loopback import free_port
from tests.parts.dynamo.network.answers import (
    kill,
    read,
    request_of,
    script,
)
from tests.parts.dynamo.network.deployment import (
    Deployment,
    deployment,
    until_capacity,
)

pytestmark = pytest.mark.dynamo


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
