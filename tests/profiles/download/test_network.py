"""Proxies and private certificates: every kind of source honours the usual variables.

In processes of their own, because libraries read these variables once.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import select
import socket
import socketserver
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography import x509

from tests.auth.test_tls import Authority
from tests.profiles.hub import Served, serving

HOSTS = ("hub.example", "mirror.example", "ngc.example")
CONTENT = b'{"model_type": "gpt_oss"}'
FETCH = """
import sys
from pathlib import Path
from profiles.download import fetch as fetching
from profiles.download.source import NgcAccess, RemoteFile, read_source
from profiles.errors import DownloadError
from service.settings.environment import trust_certificates
trust_certificates()
fetching._PAUSE_S = 0.0
folder, size, sha256, ngc, *sources = sys.argv[1:]
for number, source in enumerate(sources):
    file = RemoteFile("config.json", int(size), sha256)
    place = Path(folder) / str(number)
    try:
        fetching.fetch("it", [file], place, read_source(source, "X"), NgcAccess(None, ngc, ngc))
        print("whole", (place / "config.json").stat().st_size)
    except DownloadError as error:
        print("refused", str(error).replace("\\n", " "))
"""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


@pytest.fixture
def server(authority: Authority) -> Iterator[Served]:
    """The hub, a mirror and NGC on one port, with a certificate that only `authority` knows."""
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    names = [address, *map(x509.DNSName, HOSTS)]
    certificate, key = authority.issue("server", *names, is_client=False)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    with serving(
        {
            "openai/gpt-oss-20b/resolve/main/config.json": CONTENT,
            "models/config.json": CONTENT,
            "store/config.json": CONTENT,
        },
        tls,
    ) as served:
        yield served


def fetched(folder: Path, urls: Sequence[str], served: Served, **environment: str) -> list[str]:
    """What a process with this environment says of the hub, a mirror and NGC at these places."""
    hub, mirror, ngc = urls
    served.lists["v2/models/org/acme/gpt/1/files?path=config.json"] = json.dumps(
        {"urls": [f"{ngc}/store/config.json"]}
    ).encode()
    plain = {
        name: value
        for name, value in os.environ.items()
        if "proxy" not in name.lower() and "CERT" not in name and "CA_BUNDLE" not in name
    }
    sources = ["hf://openai/gpt-oss-20b", f"{mirror}/models", "ngc://acme/gpt:1"]
    arguments = [str(len(CONTENT)), hashlib.sha256(CONTENT).hexdigest(), ngc, *sources]
    result = subprocess.run(
        [sys.executable, "-c", FETCH, str(folder), *arguments],
        env={**plain, "HF_ENDPOINT": hub, "HF_HOME": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


@contextmanager
def proxying(port: int) -> Iterator[tuple[str, list[str]]]:
    """A proxy that knows every name, all of them at `port`; yields its address and what it saw."""
    seen: list[str] = []

    class Tunnel(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            method, target, _ = self.rfile.readline().decode().split()
            while self.rfile.readline().strip():
                pass
            seen.append(f"{method} {target}")
            with socket.create_connection(("127.0.0.1", port)) as there:
                self.connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                _join(self.connection, there)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Tunnel) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", seen
        server.shutdown()
        thread.join()


def _join(here: socket.socket, there: socket.socket) -> None:
    """Carry bytes both ways until one side ends."""
    while True:
        readable, _, _ = select.select([here, there], [], [], 60)
        for end in readable:
            try:
                data = end.recv(65536)
            except OSError:
                return
            if not data:
                return
            (there if end is here else here).sendall(data)
        if not readable:
            return


def test_all_go_through_the_proxy_and_trust_the_private_authority(
    server: Served, authority: Authority, tmp_path: Path
) -> None:
    urls = [f"https://{host}" for host in HOSTS]
    with proxying(server.port) as (proxy, seen):
        said = fetched(tmp_path, urls, server, HTTPS_PROXY=proxy, SSL_CERT_FILE=str(authority.path))
    assert said == [f"whole {len(CONTENT)}"] * 3
    assert set(seen) == {f"CONNECT {host}:443" for host in HOSTS}


def test_no_proxy_is_asked_for_hosts_that_are_left_out_and_a_bundle_of_requests_counts(
    server: Served, authority: Authority, tmp_path: Path
) -> None:
    url = f"https://127.0.0.1:{server.port}"
    with proxying(server.port) as (proxy, seen):
        said = fetched(
            tmp_path,
            [url] * 3,
            server,
            HTTPS_PROXY=proxy,
            NO_PROXY="127.0.0.1",
            REQUESTS_CA_BUNDLE=str(authority.path),
        )
    assert said == [f"whole {len(CONTENT)}"] * 3
    assert seen == []


def test_a_certificate_of_nobody_known_is_refused_with_the_variable_that_helps(
    server: Served, tmp_path: Path
) -> None:
    url = f"https://127.0.0.1:{server.port}"
    said = fetched(tmp_path, [url] * 3, server)
    assert len(said) == 3
    assert all(line.startswith("refused") and "SSL_CERT_FILE" in line for line in said)
    assert server.asked == []
