"""TLS of our own: real certificates, real connections."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from pydantic import SecretStr

from service.admission.lifecycle import Lifecycle
from service.chat_format import format_named
from service.http.connections import NUM_SPARE
from service.http.probe import is_ready
from service.http.tls import TlsError, expires_at, name_of, peer_state, tls_of
from service.run.accept import Shares
from service.run.listener import listen, url_of
from service.run.server import ApiServer
from service.run.wiring import authenticator_of
from service.runtime import Runtime, ServedModel, ServerLimits
from service.settings.errors import SettingsError
from service.settings.settings import Settings, load
from service.telemetry.collectors import ExpiryCollector
from service.telemetry.metrics import Metrics
from tests.fake.engine import FakeEngine
from tests.fake.sequence import FakeOptions


class Authority:
    """Signs certificates and writes them with their keys into a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        root = self._builder(self._name, self._key).add_extension(constraints, critical=True)
        self.path = self._write(f"{name}.pem", root.sign(self._key, hashes.SHA256()))

    def issue(
        self, name: str, *alternatives: x509.GeneralName, is_client: bool = True, days: int = 1
    ) -> tuple[Path, Path]:
        """The paths of a certificate and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usage = ExtendedKeyUsageOID.CLIENT_AUTH if is_client else ExtendedKeyUsageOID.SERVER_AUTH
        builder = self._builder(subject, key, days).add_extension(
            x509.ExtendedKeyUsage([usage]), critical=False
        )
        if alternatives:
            names = x509.SubjectAlternativeName(alternatives)
            builder = builder.add_extension(names, critical=False)
        path = self._write(f"{name}.pem", builder.sign(self._key, hashes.SHA256()))
        key_path = self.folder / f"{name}.key"
        form = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        key_path.write_bytes(key.private_bytes(*form))
        return path, key_path

    def _builder(self, subject: x509.Name, key: Any, days: int = 1) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return x509.CertificateBuilder(
            issuer_name=self._name,
            subject_name=subject,
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - timedelta(days=3),
            not_valid_after=now + timedelta(days=days),
        )

    def _write(self, name: str, certificate: x509.Certificate) -> Path:
        path = self.folder / name
        path.write_bytes(certificate.public_bytes(Encoding.PEM))
        return path


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


@pytest.fixture
def files(authority: Authority) -> dict[str, Any]:
    """The settings of a server with a certificate for 127.0.0.1."""
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate, key = authority.issue("server", address, is_client=False)
    return {"ssl_mode": "TLS", "ssl_certs_path": certificate, "ssl_key_path": key}


@pytest.fixture
def mutual(files: dict[str, Any], authority: Authority) -> dict[str, Any]:
    return files | {"ssl_mode": "mtls", "ssl_ca_certs_path": authority.path}


@asynccontextmanager
async def served(
    settings: Settings, shares: Shares | None = None, max_connections: int = 4096
) -> AsyncIterator[str]:
    """The API on a port of its own; yields host and port."""
    engine = FakeEngine(FakeOptions(script=(12194, 200002)))
    await engine.start()
    lifecycle = Lifecycle()
    lifecycle.mark_ready()
    runtime = Runtime(
        engine,
        ServedModel("m", "openai/m", "0" * 64, 0),
        format_named("harmony"),
        Metrics("m"),
        lifecycle,
        limits=ServerLimits(max_connections=max_connections),
        authenticator=authenticator_of(settings),
        tls=tls_of(settings),
    )
    with listen("127.0.0.1", 0) as listener:
        async with ApiServer(runtime, shares).listening(listener):
            yield url_of(listener).removeprefix("http://")
    await engine.stop()


def client(authority: Authority, pair: tuple[Path, Path] | None = None) -> httpx2.AsyncClient:
    context = ssl.create_default_context(cafile=authority.path)
    if pair is not None:
        context.load_cert_chain(*pair)
    return httpx2.AsyncClient(verify=context, timeout=60, trust_env=False)


async def test_tls_serves_https_and_nothing_else(authority: Authority, files: Any) -> None:
    async with served(load(files)) as place, client(authority) as https:
        assert (await https.get(f"https://{place}/v1/models")).status_code == 200
        with pytest.raises(httpx2.TransportError):
            await https.get(f"http://{place}/v1/models")


async def test_old_versions_of_tls_are_refused(authority: Authority, files: Any) -> None:
    context = tls_of(load(files))
    assert context is not None
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2


async def test_keys_are_asked_for_under_tls_as_well(authority: Authority, files: Any) -> None:
    settings = load(files | {"api_keys": SecretStr("the-one-right-key")})
    async with served(settings) as place, client(authority) as https:
        url = f"https://{place}/v1/models"
        assert (await https.get(url)).status_code == 401
        assert (await https.get(url, headers={"X-API-Key": "the-one-right-key"})).status_code == 200


async def test_a_clients_certificate_says_who_it_is(
    authority: Authority, mutual: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    settings = load(mutual | {"api_keys": SecretStr("the-one-right-key")})
    name = x509.UniformResourceIdentifier("spiffe://cluster/gateway")
    async with served(settings) as place, client(authority, authority.issue("a", name)) as https:
        url = f"https://{place}/v1/models"
        for _ in range(2):
            assert (await https.get(url)).status_code == 200
        assert (await https.get(url, headers={"X-API-Key": "wrong"})).status_code == 401
        assert (await https.get(url, headers={"X-API-Key": "the-one-right-key"})).status_code == 200
        assert (await https.get(f"https://{place}/v1/unheard-of")).status_code == 403
    callers = [
        record.__dict__["audit"].get("caller")
        for record in caplog.records
        if record.__dict__.get("audit", {}).get("event") == "auth.granted"
    ]
    assert len(callers) == 3
    assert callers[0] == callers[1] != callers[2]
    assert callers[0].startswith("cert-")


@pytest.mark.parametrize("case", ["none", "another authority's", "expired", "a server's"])
async def test_without_a_good_certificate_there_is_no_connection(
    authority: Authority, mutual: Any, tmp_path: Path, case: str
) -> None:
    (tmp_path / "other").mkdir()
    pairs = {
        "none": None,
        "another authority's": Authority(tmp_path / "other", "other").issue("c"),
        "expired": authority.issue("expired", days=-1),
        "a server's": authority.issue("s", is_client=False),
    }
    async with served(load(mutual)) as place, client(authority, pairs[case]) as https:
        with pytest.raises(httpx2.TransportError):
            await https.get(f"https://{place}/v1/health/live")


def test_a_name_is_taken_from_the_most_telling_place() -> None:
    subject = ((("organizationName", "o"),), (("commonName", "n"),))
    names = (("DNS", "a.example"), ("DNS", "b.example"), ("URI", "spiffe://x"))
    assert name_of({"subject": subject, "subjectAltName": names}) == "URI:spiffe://x"
    assert name_of({"subject": subject, "subjectAltName": names[:2]}) == "DNS:a.example"
    assert name_of({"subject": subject}) == "CN:n"
    assert name_of({"subject": subject[:1]}) == "subject:{'organizationName': 'o'}"
    assert peer_state(Presented({"subject": (), "serialNumber": "01"})) == {}
    assert peer_state(Presented({"subject": subject})) == {"certificate": "CN:n"}


class Presented(asyncio.BaseTransport):
    """A connection with a client's certificate."""

    def __init__(self, certificate: dict[str, Any]) -> None:
        super().__init__({"peercert": certificate})


@pytest.mark.parametrize(
    ("field", "content", "named"),
    [
        ("ssl_certs_path", None, "NIM_SSL_CERTS_PATH"),
        ("ssl_key_path", None, "NIM_SSL_KEY_PATH"),
        ("ssl_ca_certs_path", None, "NIM_SSL_CA_CERTS_PATH"),
        ("ssl_certs_path", b"nothing", "NIM_SSL_CERTS_PATH"),
        ("ssl_key_path", b"nothing", "NIM_SSL_KEY_PATH"),
        ("ssl_ca_certs_path", b"nothing", "NIM_SSL_CA_CERTS_PATH"),
    ],
)
def test_files_that_cannot_be_used_are_named(
    mutual: dict[str, Any], tmp_path: Path, field: str, content: bytes | None, named: str
) -> None:
    path = tmp_path / "bad.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TlsError, match=named):
        tls_of(load(mutual | {field: path}))


def test_an_encrypted_key_is_refused_and_asks_nobody(mutual: dict[str, Any]) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    form = (Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    mutual["ssl_key_path"].write_bytes(key.private_bytes(*form))
    with pytest.raises(TlsError, match="unencrypted"):
        tls_of(load(mutual))


def serial_of(place: str, authority: Authority) -> int:
    host, port = place.split(":")
    context = ssl.create_default_context(cafile=authority.path)
    plain = socket.create_connection((host, int(port)), timeout=60)
    with plain, context.wrap_socket(plain, server_hostname=host) as wrapped:
        found = wrapped.getpeercert(binary_form=True)
    assert found is not None
    return x509.load_der_x509_certificate(found).serial_number


async def test_a_renewed_certificate_counts_for_new_connections(
    authority: Authority, files: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr("service.http.tls.RENEWAL_S", 0.0)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    async with served(load(files)) as place:
        first = await asyncio.to_thread(serial_of, place, authority)
        files["ssl_key_path"].write_text("half a key")
        assert await asyncio.to_thread(serial_of, place, authority) == first
        assert caplog.text.count("Keeping the previous") == 1
        authority.issue("server", address, is_client=False)
        assert await asyncio.to_thread(serial_of, place, authority) != first


async def test_a_new_authority_of_clients_counts_as_well(
    authority: Authority, mutual: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.http.tls.RENEWAL_S", 0.0)
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other", "other")
    old, new = client(authority, authority.issue("c")), client(authority, other.issue("c"))
    ours = tmp_path / "clients.pem"
    ours.write_bytes(authority.path.read_bytes())
    async with served(load(mutual | {"ssl_ca_certs_path": ours})) as place, old, new:
        url = f"https://{place}/v1/models"
        with pytest.raises(httpx2.TransportError):
            await new.get(url)
        ours.write_bytes(other.path.read_bytes())
        assert (await new.get(url)).status_code == 200
        with pytest.raises(httpx2.TransportError):
            await old.get(url)


@pytest.mark.parametrize("mode", ["disabled", "tls", "mtls"])
async def test_the_images_health_check_speaks_what_the_server_does(
    files: Any, mutual: Any, mode: str
) -> None:
    settings = load({"disabled": {}, "tls": files, "mtls": mutual}[mode])
    async with served(settings) as place:
        port = int(place.rpartition(":")[2])
        assert await asyncio.to_thread(is_ready, port, mode)
        assert mode == "disabled" or not await asyncio.to_thread(is_ready, port, "disabled")
    assert not await asyncio.to_thread(is_ready, port, mode)


async def test_a_client_that_says_nothing_holds_no_others_up(
    authority: Authority, files: Any
) -> None:
    async with served(load(files)) as place, client(authority) as https:
        host, port = place.split(":")
        with socket.create_connection((host, int(port))):
            assert (await https.get(f"https://{place}/v1/models")).status_code == 200


async def test_handshakes_that_are_none_fill_no_log(
    files: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(load(files), Shares()) as place:
        host, port = place.split(":")
        for sent in [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\xa5\x01" * 99, b""] * 20:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(sent)
            writer.write_eof()
            await reader.read()
            writer.close()
    assert caplog.messages == []


@pytest.mark.slow
@pytest.mark.heavy  # it waits for seconds
async def test_handshakes_that_nobody_ends_make_room_for_others(
    authority: Authority, files: Any
) -> None:
    """A silent connection costs 50 KB of TLS state, and is none that uvicorn counts."""
    most, num_silent = 4, 300
    before = psutil.Process().num_fds()
    settings = load(files)
    shares = Shares()
    async with served(settings, shares, max_connections=most) as place:
        host, port = place.split(":")
        silent = [socket.create_connection((host, int(port))) for _ in range(num_silent)]
        async with client(authority) as https:
            for _ in range(3):
                assert (await https.get(f"https://{place}/v1/health/live")).status_code == 200
        async with asyncio.timeout(60):  # for those still in the kernel's queue
            while psutil.Process().num_fds() - before - num_silent > most + NUM_SPARE + 20:
                await asyncio.sleep(0.01)
        for each in silent:
            each.close()
    shares.close()


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"ssl_mode": "tls"}, "NIM_SSL_KEY_PATH is missing"),
        ({"ssl_mode": "tls", "ssl_key_path": "k"}, "NIM_SSL_CERTS_PATH is missing"),
        ({"ssl_key_path": "k"}, "NIM_SSL_KEY_PATH has no effect"),
        (
            {"ssl_mode": "mtls", "ssl_key_path": "k", "ssl_certs_path": "c"},
            "NIM_SSL_CA_CERTS_PATH is missing",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_named(given: dict[str, str], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        load(given)


async def test_metrics_say_when_the_certificate_and_keys_expire(authority: Authority) -> None:
    path, _ = authority.issue("server", days=3)
    metrics = Metrics("m")
    metrics.add(ExpiryCollector(lambda: {"00ff": 1.5e9}, partial(expires_at, path)))
    page = (await metrics.render(FakeEngine(FakeOptions(script=(1,))))).decode()
    values = dict(line.rsplit(" ", 1) for line in page.splitlines() if "_expires_" in line[:60])
    assert float(values['harmonium_key_expires_timestamp_seconds{key="00ff"}']) == 1.5e9
    of_server = float(values["harmonium_tls_certificate_expires_timestamp_seconds"])
    assert abs(of_server - datetime.now(UTC).timestamp() - 3 * 86_400) < 3600
    path.write_text("half of a")  # while it is replaced
    page = (await metrics.render(FakeEngine(FakeOptions(script=(1,))))).decode()
    assert "\nharmonium_tls_certificate_expires" not in page
