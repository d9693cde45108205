"""Starts etcd, the API server and its controllers in a folder, and stops them."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from ssl import CERT_NONE, create_default_context

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

PATIENCE_S = 120
# No node is there, so nothing makes volumes: tests bind claims themselves.
CONTROLLERS = "*,-node-ipam-controller,-persistentvolume-binder-controller"


@contextmanager
def cluster(binaries: Path, folder: Path) -> Iterator[Path]:
    """A cluster without nodes; gives the path of an administrator's kubeconfig."""
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *flags: str) -> subprocess.Popen[bytes]:
        with (folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen([binaries / name, *flags], stdout=log, stderr=log)
        started.append(process)
        return process

    try:
        etcd, peers, port = _free_ports()
        store = f"http://127.0.0.1:{etcd}"
        start("etcd", *_etcd_flags(folder, store, f"http://127.0.0.1:{peers}"))
        _write_keys(folder)
        server = start("kube-apiserver", *_server_flags(folder, store, port))
        _wait(server, port, folder)
        admin = _kubeconfig(folder, port, "admin")
        controllers = _kubeconfig(folder, port, "controllers")
        start("kube-controller-manager", *_controller_flags(folder, controllers))
        yield admin
    finally:  # the server waits for minutes if etcd goes first
        for process in reversed(started):
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _free_ports() -> list[int]:
    probes = [socket.socket() for _ in range(3)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports: list[int] = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def _etcd_flags(folder: Path, store: str, peers: str) -> list[str]:
    return [
        *("--data-dir", str(folder / "etcd"), "--unsafe-no-fsync", "--log-level", "error"),
        *("--listen-client-urls", store, "--advertise-client-urls", store),
        *("--listen-peer-urls", peers),
    ]


def _server_flags(folder: Path, store: str, port: int) -> list[str]:
    return [
        *("--etcd-servers", store, "--bind-address", "127.0.0.1", "--secure-port", str(port)),
        *("--cert-dir", str(folder), "--token-auth-file", str(folder / "tokens.csv")),
        *("--service-cluster-ip-range", "10.96.0.0/16", "--authorization-mode", "RBAC"),
        *("--service-account-issuer", "https://kubernetes.default.svc"),
        *("--service-account-key-file", str(folder / "accounts.key")),
        *("--service-account-signing-key-file", str(folder / "accounts.key")),
        *("--endpoint-reconciler-type", "none"),
    ]


def _controller_flags(folder: Path, kubeconfig: Path) -> list[str]:
    return [
        *("--kubeconfig", str(kubeconfig), "--controllers", CONTROLLERS),
        *("--service-account-private-key-file", str(folder / "accounts.key")),
        *("--use-service-account-credentials", "--leader-elect=false"),
        *("--secure-port", "0"),
    ]


def _write_keys(folder: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = serialization.PrivateFormat.TraditionalOpenSSL
    pem = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    (folder / "accounts.key").write_bytes(pem)
    tokens = [
        'admin,admin,1,"system:masters"',
        "controllers,system:kube-controller-manager,2",
    ]
    (folder / "tokens.csv").write_text("\n".join(tokens) + "\n", encoding="utf-8")


def _kubeconfig(folder: Path, port: int, token: str) -> Path:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "x",
        "clusters": [
            {
                "name": "c",
                "cluster": {
                    "server": f"https://127.0.0.1:{port}",
                    "certificate-authority": str(folder / "apiserver.crt"),
                },
            }
        ],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    }
    path = folder / f"{token}.kubeconfig"
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


def _wait(server: subprocess.Popen[bytes], port: int, folder: Path) -> None:
    context = create_default_context()
    context.check_hostname, context.verify_mode = False, CERT_NONE
    request = urllib.request.Request(
        f"https://127.0.0.1:{port}/readyz", headers={"Authorization": "Bearer admin"}
    )
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end and server.poll() is None:
        try:
            with urllib.request.urlopen(request, context=context, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    log = (folder / "kube-apiserver.log").read_text(errors="replace")
    raise SystemExit(f"kube-apiserver does not get ready:\n{log[-3000:]}")
