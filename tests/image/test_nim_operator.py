"""The image as NVIDIA's NIM Operator 3.1.4 runs it: its users, mounts, variables, commands, probes.

What it does was read in its source (internal/controller, api/apps/v1alpha1, manifests; commit
f63f74d) and the release notes of 3.1.3 and 3.1.4. Each row of
docs/guides/nim-operator.md names a test of this file.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from profiles.checkpoints.compact import bundled_nano
from tests import loopback
from tests.image.containers import HEADERS, IMAGE, KEY, checked, podman
from tests.profiles.hub import serving
from tests.profiles.store.test_store import shard

pytestmark = pytest.mark.image

UID, GID = 1000, 2000
POD = (
    "--network=host",
    f"--user={UID}:{GID}",
    "--cap-drop=all",
    "--security-opt=no-new-privileges",
    "--tmpfs=/dev/shm",
)
SHOW_MANIFEST = (  # getCommand() of the NIMCache's pod, without its `sleep infinity`
    "if [ -f /opt/nim/etc/default/model_manifest.yaml ]; then "
    "cat /opt/nim/etc/default/model_manifest.yaml; "
    "elif [ -f /etc/nim/config/model_manifest.yaml ]; then "
    "cat /etc/nim/config/model_manifest.yaml; "
    'else echo "model_manifest.yaml not found"; fi;'
)
UPDATE_CERTIFICATES = (  # GetUpdateCaCertInitContainerCommand()
    "ls -l /custom; cp /custom/*.crt /usr/local/share/ca-certificates/; "
    'for f in /custom/*.pem; do cp "$f" "/usr/local/share/ca-certificates/'
    '$(basename "${f%.pem}")-pem.crt"; done; '
    "update-ca-certificates; cp -r /etc/ssl/certs/ /ca-certs;"
)
PROBE_TIMEOUT_S = 1.0
STARTUP_LIMIT_S = 30 + 120 * 10
GRACE_S = 30


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A claim as the kubelet hands it to a pod with fsGroup 2000."""
    folder = tmp_path / "model-store"
    folder.mkdir()
    os.chown(folder, 0, GID)
    folder.chmod(0o2775)
    return folder


def job(store: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The NIMCache's Job, whose command takes the place of the image's entry point."""
    entrypoint, *arguments = command
    variables = [f"--env={name}={value}" for name, value in environment.items()]
    return podman(
        *("run", "--rm", *POD, "--env=NIM_CACHE_PATH=/model-store", *variables),
        *(f"--volume={store}:/model-store", "--tmpfs=/scratch", f"--entrypoint={entrypoint}"),
        *(IMAGE, *arguments),
    )


@contextmanager
def service(store: Path, mode: str = "rw", **environment: str) -> Iterator[tuple[str, str]]:
    """The NIMService's pod: the container's name and its URL."""
    port = loopback.free_port()
    name = f"harmonium-nim-{port}"
    variables = {
        "NIM_CACHE_PATH": "/model-store",
        "OUTLINES_CACHE_DIR": "/tmp/outlines",
        "NIM_SERVER_PORT": str(port),
        "NIM_HTTP_API_PORT": str(port),
        "NIM_JSONL_LOGGING": "1",
        "NIM_LOG_LEVEL": "INFO",
        "NIM_MODEL_PROFILE": nano_profile(),
        "NIM_READ_WITHOUT_KEY": "metrics,models",
        "NIM_API_KEYS": KEY,
        **environment,
    }
    given = [f"--env={key}={value}" for key, value in variables.items()]
    volume = f"--volume={store}:/model-store:{mode}"
    checked("run", "--detach", "--name", name, *POD, volume, *given, IMAGE)
    try:
        yield name, f"http://{loopback.IN_URL}:{port}"
    finally:
        podman("rm", "--force", "--time=5", "--volumes", name)


def ready(name: str, url: str) -> None:
    """Wait as the startup probe does; fails with the log."""
    deadline = time.monotonic() + STARTUP_LIMIT_S
    while time.monotonic() < deadline:
        if probe(f"{url}/v1/health/ready") == 200:
            return
        if checked("inspect", "--format", "{{.State.Running}}", name) != "true":
            break
        time.sleep(0.5)
    log = podman("logs", name)
    pytest.fail(f"never ready\n{log.stdout}{log.stderr}")


def probe(url: str) -> int:
    """The status that a probe sees; 0 for no answer within its second."""
    try:
        return httpx2.get(url, timeout=PROBE_TIMEOUT_S).status_code
    except httpx2.TransportError:
        return 0


def manifest() -> dict[str, Any]:
    """What the operator reads in the log of the NIMCache's pod."""
    text = checked("run", "--rm", *POD, "--entrypoint=sh", IMAGE, "-c", SHOW_MANIFEST)
    loaded: dict[str, Any] = yaml.safe_load(text)
    return loaded


def nano_profile() -> str:
    tags = {"model": "nano", "llm_engine": "native", "gpu": "cpu", "tp": "1"}
    [profile] = [each for each in manifest()["profiles"] if tags.items() <= each["tags"].items()]
    return str(profile["id"])


def test_the_manifest_is_read_by_the_cache_pod() -> None:
    read = manifest()
    assert next(iter(read)) == "schema_version", "operators before 3.1.4 want it before profiles"
    assert read["schema_version"] == "2.0.0" or read["schema_version"] == "2.0"
    profiles = read["profiles"]
    assert len({each["id"] for each in profiles}) == len(profiles)
    engines = {each["tags"]["llm_engine"] for each in profiles}
    assert {"native", "vllm"} <= engines


def test_the_job_fetches_a_profile(store: Path) -> None:
    done = job(store, "download-to-cache", "--profiles", nano_profile())
    assert done.returncode == 0, done.stderr


def test_the_job_fetches_a_model_by_its_uri(store: Path) -> None:
    files = {"config.json": (bundled_nano() / "config.json").read_bytes()}
    files["model.safetensors"] = shard("a", num_bytes=40_000_000)
    with serving({f"m/nano/{name}": content for name, content in files.items()}) as mirror:
        uri = f"{mirror.url}/m/nano"
        done = job(
            store,
            *("download-to-cache", "--model-uri", uri),
            *("--manifest-file", "/model-store/model_manifest.json"),
        )
    assert done.returncode == 0, done.stderr
    assert json.loads((store / "model_manifest.json").read_text())
    fetched = [path for path in store.rglob("*") if path.is_file()]
    assert any(path.suffix == ".safetensors" for path in fetched)
    for path in fetched:
        status = path.stat()
        assert (status.st_uid, status.st_gid) == (UID, GID), path
        assert status.st_mode & 0o060 == 0o060, f"the group cannot write {path}"


def test_it_becomes_ready_under_the_probes(store: Path) -> None:
    with service(store) as (name, url):
        deadline = time.monotonic() + 60
        while probe(f"{url}/v1/health/live") != 200:
            assert time.monotonic() < deadline, podman("logs", name).stderr
        seen = set()
        while (status := probe(f"{url}/v1/health/ready")) != 200:
            seen.add(status)
            assert probe(f"{url}/v1/health/live") == 200, "the kubelet would kill it"
        assert seen <= {503}
        log = podman("logs", name)
        assert "is not a setting of this server" not in log.stdout + log.stderr
        for line in log.stderr.splitlines():
            json.loads(line)  # NIM_JSONL_LOGGING


def test_from_the_cache_it_is_ready_within_the_startup_limit(store: Path) -> None:
    """What the Job brought is served as it is: nothing is downloaded or unpacked again."""
    profile = nano_profile()
    done = job(store, "download-to-cache", "--profiles", profile)
    assert done.returncode == 0, done.stderr
    brought = {path: path.stat().st_mtime_ns for path in (store / "models").rglob("*")}
    assert brought
    with service(store, NIM_MODEL_PROFILE=profile) as (name, url):
        ready(name, url)
        log = podman("logs", name)
    assert "are missing: a start downloads them" not in log.stdout + log.stderr
    assert {path: path.stat().st_mtime_ns for path in (store / "models").rglob("*")} == brought


def test_the_operator_and_prometheus_read_without_a_key(store: Path) -> None:
    with service(store) as (name, url):
        ready(name, url)
        models = httpx2.get(f"{url}/v1/models", timeout=30)
        assert models.json()["data"][0]["id"] == "nano"
        metrics = httpx2.get(f"{url}/v1/metrics", timeout=30).text
        for series in ("num_requests_running", "vllm:num_requests_waiting", "harmonium_info"):
            assert f"\n{series}" in metrics
        body = {"model": "nano", "messages": [{"role": "user", "content": "Hello"}]}
        chat = f"{url}/v1/chat/completions"
        assert httpx2.post(chat, json=body, timeout=60).status_code == 401
        assert httpx2.post(chat, json=body, headers=HEADERS, timeout=60).status_code == 200


def test_it_ends_by_itself_within_the_grace(store: Path) -> None:
    with service(store) as (name, url):
        ready(name, url)
        body = {
            "model": "nano",
            "stream": True,
            "max_tokens": 2000,
            "messages": [{"role": "user", "content": "Tell me a long story."}],
        }
        path = f"{url}/v1/chat/completions"
        with httpx2.stream("POST", path, json=body, headers=HEADERS, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            began = time.monotonic()
            checked("kill", "--signal=TERM", name)
            last = [line for line in lines if line][-1]
        assert last == "data: [DONE]"
        code = checked("wait", name)
        assert time.monotonic() - began < GRACE_S
        assert code == "0"


def test_a_read_only_store_is_served(store: Path) -> None:
    """`storage.readOnly: true`, as for a claim that several nodes share."""
    with service(store, mode="ro") as (name, url):
        ready(name, url)


def test_it_trusts_the_certificates_of_the_proxy(tmp_path: Path) -> None:
    custom, trusted = tmp_path / "custom", tmp_path / "ca-certs"
    custom.mkdir()
    trusted.mkdir()
    (custom / "proxy.pem").write_bytes(authority("A proxy of the tests"))
    (custom / "other.crt").write_bytes(authority("Another of the tests"))
    checked(
        *("run", "--rm", "--network=host", "--user=0:0", "--entrypoint=/bin/sh"),
        *(f"--volume={custom}:/custom", f"--volume={trusted}:/ca-certs"),
        *(IMAGE, "-c", UPDATE_CERTIFICATES),
    )
    code = (
        "import ssl; c = ssl.create_default_context(); "
        "c.load_verify_locations('/etc/ssl/certs/ca-certificates.crt'); "
        "print([dict(p[0] for p in ca['subject']) for ca in c.get_ca_certs()])"
    )
    names = checked(
        *("run", "--rm", *POD, f"--volume={trusted}:/etc/ssl", "--entrypoint=python"),
        *(IMAGE, "-c", code),
    )
    assert "A proxy of the tests" in names
    assert "Another of the tests" in names


def test_variables_of_a_proxy_are_understood(store: Path) -> None:
    given = {"NIM_SDK_USE_NATIVE_TLS": "1", "HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "*"}
    done = job(store, "nim-serve", "--dry-run", NIM_MODEL_NAME="nano", **given)
    assert done.returncode == 0, done.stderr
    assert "is not a setting of this server" not in done.stdout + done.stderr


def test_several_nodes_are_refused_in_words(store: Path) -> None:
    done = job(store, "harmonium", "nim-serve-ray")
    assert done.returncode == 2
    assert "one server runs on one machine" in done.stderr
    given = {"NIM_MULTI_NODE": "1", "NIM_NUM_COMPUTE_NODES": "2", "NIM_NODE_RANK": "0"}
    done = job(store, "nim-serve", "--dry-run", NIM_MODEL_NAME="nano", **given)
    assert "NIM_MULTI_NODE, NIM_NODE_RANK, NIM_NUM_COMPUTE_NODES: not supported" in done.stderr


def test_no_label_selects_a_download_without_the_manifest() -> None:
    labels = json.loads(checked("inspect", "--format", "{{json .Config.Labels}}", IMAGE))
    assert "com.nvidia.nim.model_download_protocol" not in labels


def authority(name: str) -> bytes:
    """A certificate authority's certificate as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM)
