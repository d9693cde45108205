"""The built image as a cluster runs it: uid 10001, read-only root, no capabilities."""

import json
import re
import time
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx2
import pytest

from service.__main__ import commands
from tests import loopback
from tests.image.containers import (
    CONFINED,
    FLAVOUR,
    HEADERS,
    IMAGE,
    QUESTION,
    ROOT,
    STOP_LIMIT_S,
    Container,
    checked,
    podman,
    run,
)

pytestmark = pytest.mark.image
IS_GUEST = FLAVOUR in ("vllm", "tensorrt-llm")
NIM_COMMANDS = (
    "nim-serve",
    "nim-serve-ray",
    "nim-run",
    "nim-optimize",
    "list-model-profiles",
    "download-to-cache",
    "download-model",
    "create-model-store",
    "mirror",
    "check-cache-env",
)


@pytest.fixture(scope="module")
def container() -> Iterator[Container]:
    with run() as container:
        yield container


def ask(container: Container) -> str:
    model = httpx2.get(container.url("/v1/models"), headers=HEADERS, timeout=30).json()["data"][0][
        "id"
    ]
    reply = httpx2.post(
        container.url("/v1/chat/completions"),
        json=QUESTION | {"model": model},
        headers=HEADERS,
        timeout=60,
    )
    assert reply.status_code == 200, reply.text
    content: str = reply.json()["choices"][0]["message"]["content"]
    return content


def test_it_chats(container: Container, capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask(container)
    with capsys.disabled():
        print(f"\n{IMAGE}: ready {container.ready_s:.1f} s after podman run; says: {answer!r}")
    assert answer.strip()


def test_it_streams(container: Container) -> None:
    model = httpx2.get(container.url("/v1/models"), headers=HEADERS, timeout=30).json()["data"][0][
        "id"
    ]
    body = QUESTION | {"model": model, "stream": True}
    with httpx2.stream(
        "POST", container.url("/v1/chat/completions"), json=body, headers=HEADERS, timeout=60
    ) as reply:
        events = [line.removeprefix("data: ") for line in reply.iter_lines() if line]
    assert events[-1] == "[DONE]"
    deltas = [choice["delta"] for event in events[:-1] for choice in json.loads(event)["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas).strip()


@pytest.mark.skipif(IS_GUEST, reason="vLLM's grammars let nano write blanks without end")
def test_it_holds_an_answer_to_a_schema(container: Container) -> None:
    """Grammars work in the image, which has no triton."""
    model = httpx2.get(container.url("/v1/models"), headers=HEADERS, timeout=30).json()["data"][0][
        "id"
    ]
    schema = {
        "type": "object",
        "properties": {"friendly": {"type": "boolean"}},
        "required": ["friendly"],
        "additionalProperties": False,
    }
    answer_format = {"name": "mood", "schema": schema, "strict": True}
    reply = httpx2.post(
        container.url("/v1/chat/completions"),
        json=QUESTION
        | {
            "model": model,
            "response_format": {"type": "json_schema", "json_schema": answer_format},
            "thinking_token_budget": 16,
        },
        headers=HEADERS,
        timeout=60,
    )
    assert reply.status_code == 200, reply.text
    answer = json.loads(reply.json()["choices"][0]["message"]["content"])
    assert isinstance(answer["friendly"], bool)


def test_without_keys_it_makes_one_and_keeps_it_out_of_its_log() -> None:
    with run(keys="") as container:
        assert httpx2.get(container.url("/v1/models"), timeout=30).status_code == 401
        log = podman("logs", container.name)
        assert "hmk_" not in log.stderr + log.stdout
        [path] = re.findall(r"/opt/nim/\.cache/api-key-\d+", log.stderr + log.stdout)
        key = container.execute("cat", path).stdout.strip()
        models = httpx2.get(container.url("/v1/models"), headers={"X-API-Key": key}, timeout=30)
        assert models.status_code == 200


def test_it_runs_as_10001_without_a_writable_root(container: Container) -> None:
    assert container.execute("id", "-u").stdout.strip() == "10001"
    for folder in ("/opt/harmonium", "/opt/nim", "/etc"):
        assert container.execute("touch", f"{folder}/probe").returncode != 0
    assert container.execute("touch", "/opt/nim/.cache/probe").returncode == 0


def test_the_health_check_follows_readiness(container: Container) -> None:
    shell, command = json.loads(checked("inspect", "--format", "{{json .HealthCheck.Test}}", IMAGE))
    assert shell == "CMD-SHELL"
    assert container.execute("sh", "-c", command).returncode == 0
    nobody_listens = f"export NIM_SERVER_PORT={loopback.free_port()}; {command}"
    assert container.execute("sh", "-c", nobody_listens).returncode != 0


def test_any_uid_can_run_it() -> None:
    with run("--user=54321") as container:
        assert container.execute("id", "-u").stdout.strip() == "54321"
        assert ask(container).strip()


def test_a_stop_drains_and_exits_0() -> None:
    with run() as container:
        checked("stop", f"--time={STOP_LIMIT_S}", container.name)
        assert checked("inspect", "--format", "{{.State.ExitCode}}", container.name) == "0"
        log = podman("logs", container.name)
    if not IS_GUEST:  # vLLM writes one of its own while it is ended
        assert "Traceback" not in log.stdout + log.stderr


@pytest.mark.parametrize("after_s", [0.3, 1.5, 4.0])
def test_a_stop_while_it_starts_is_heard(after_s: float) -> None:
    """Process 1 has no default for SIGTERM: what has no handler yet would be deaf to it."""
    name = f"harmonium-test-{loopback.free_port()}"
    checked("run", "--detach", "--name", name, *CONFINED, "--env=NIM_SERVER_PORT=0", IMAGE)
    try:
        time.sleep(after_s)  # no wait for an event: the stop may come at any moment
        began_s = time.monotonic()
        checked("stop", f"--time={STOP_LIMIT_S}", name)
        assert time.monotonic() - began_s < STOP_LIMIT_S / 2
        code = checked("inspect", "--format", "{{.State.ExitCode}}", name)
        assert code in ("0", "143"), podman("logs", name).stderr  # 143: before its settings
    finally:
        podman("rm", "--force", "--time=5", "--volumes", name)


def test_a_read_only_root_without_tmp_says_what_to_mount() -> None:
    done = podman("run", "--rm", "--network=host", "--read-only", "--read-only-tmpfs=false", IMAGE)
    assert done.returncode == 1
    assert "docker run --tmpfs /tmp" in done.stderr
    assert "Traceback" not in done.stderr


def test_too_few_processes_are_named_as_the_cause() -> None:
    done = podman("run", "--rm", *CONFINED, "--pids-limit=8", "--env=NIM_MODEL_NAME=nano", IMAGE)
    assert done.returncode == 1
    assert "--pids-limit" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_it_lacks_is_in_another_flavour() -> None:
    """No checkout and no installer are in the image."""
    done = podman("run", "--rm", *CONFINED, "--env=NIM_MODEL_NAME=gpt-oss-120b", IMAGE)
    assert done.returncode == 3
    assert "tools/install.py" not in done.stderr


@pytest.mark.parametrize("command", [["harmonium", "profiles"], ["list-model-profiles"]])
def test_the_profiles_are_listed_by_either_name(command: list[str]) -> None:
    entrypoint, *arguments = command
    listing = checked("run", "--rm", *CONFINED, f"--entrypoint={entrypoint}", IMAGE, *arguments)
    assert "nano" in listing


def test_the_manifest_is_where_nims_operator_reads_it() -> None:
    path = "/opt/nim/etc/default/model_manifest.yaml"
    manifest = checked("run", "--rm", *CONFINED, "--entrypoint=cat", IMAGE, path)
    assert manifest.startswith("schema_version: 2.0.0\n")


def test_no_other_distribution_provides_our_packages() -> None:
    code = "import importlib.metadata as m, json;print(json.dumps(m.packages_distributions()))"
    packages = json.loads(
        checked("run", "--rm", *CONFINED, "--entrypoint=python", IMAGE, "-c", code)
    )
    for name in ("parts", "service", "profiles", "engines", "auth"):
        assert packages[name] == ["harmonium"]


def test_each_flavour_brings_its_engines() -> None:
    """cuda: torch with CUDA, Triton with its compiler, llama.cpp; the guests: their library."""
    code = (
        "from service.run.pythons import engines_here; from service.settings.settings import load"
    )
    code += "; import msgspec; print(msgspec.json.encode(engines_here(load({}))).decode())"
    engines = json.loads(
        checked("run", "--rm", *CONFINED, "--entrypoint=python", IMAGE, "-c", code)
    )
    installed = {name for name, reason in engines["installed"].items() if reason is None}
    has_cuda = FLAVOUR == "cuda"
    expected = {
        "cpu": {"native"},
        "cuda": {"native", "llama_cpp"},
        "vllm": {"vllm"},
        "tensorrt-llm": {"tensorrt_llm"},
    }
    assert installed == expected[FLAVOUR]
    if has_cuda:
        assert "native" not in engines["cpu_only"]
        # it loads where there is no driver
        checked("run", "--rm", *CONFINED, "--entrypoint=python", IMAGE, "-c", "import llama_cpp")


def test_the_labels_are_those_of_the_oci() -> None:
    labels = json.loads(checked("inspect", "--format", "{{json .Config.Labels}}", IMAGE))
    assert labels["io.harmonium.flavour"] == FLAVOUR
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    oci = {
        name.removeprefix("org.opencontainers.image."): value
        for name, value in labels.items()
        if name.startswith("org.opencontainers.image.")
    }
    assert oci["version"] == project["version"]
    assert oci["licenses"] == project["license"]
    assert oci["ref.name"] == f"{project['version']}-{FLAVOUR}"
    assert len(oci["revision"].removesuffix("-dirty")) == 40
    assert datetime.fromisoformat(oci["created"]) > datetime(2026, 1, 1, tzinfo=UTC)
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", oci["base.digest"])
    assert oci.keys() >= {"title", "description", "source", "url", "documentation", "vendor"}
    assert oci.keys() >= {"authors", "base.name"}


def test_a_command_of_the_image_runs_as_it_is() -> None:
    said = checked("run", "--rm", *CONFINED, IMAGE, "bash", "-c", "id -u; umask")
    assert said.split() == ["10001", "0002"]
    assert checked("run", "--rm", *CONFINED, IMAGE, "--version").startswith("harmonium ")


def test_no_program_of_the_image_hides_a_command_of_ours() -> None:
    names = sorted(commands())
    loop = f"for n in {' '.join(names)}; do command -v $n || true; done"
    found = checked("run", "--rm", *CONFINED, "--entrypoint=sh", IMAGE, "-c", loop).split()
    assert all(path.startswith("/opt/harmonium/bin/") for path in found)


@pytest.mark.parametrize("name", NIM_COMMANDS)
def test_each_command_of_nim_answers(name: str) -> None:
    """It does its work, or says what to do instead."""
    arguments = ["--help"] if name in commands() else []
    done = podman("run", "--rm", *CONFINED, IMAGE, name, *arguments)
    said = done.stdout + done.stderr
    assert "executable file not found" not in said
    assert done.returncode == 0 or "Use " in said, said


def test_one_cache_serves_several_uids_of_a_group(tmp_path: Path) -> None:
    """What one uid wrote another may write: OpenShift gives each namespace its own."""
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o2775)
    volume = f"--volume={cache}:/opt/nim/.cache"
    for uid in (54321, 12345):
        with run(f"--user={uid}:0", volume) as container:
            assert ask(container).strip()
            stored = httpx2.post(
                container.url("/v1/responses"),
                json={"model": "nano", "input": "Hello", "max_output_tokens": 32},
                headers=HEADERS,
                timeout=60,
            )
            assert stored.status_code == 200, stored.text
    private = {"responses", "responses.sqlite"}
    for path in cache.rglob("*"):
        if not private & set(path.parts) and path.lstat().st_uid == 54321 and path.is_dir():
            assert path.stat().st_mode & 0o020, f"the group cannot write {path}"


def test_no_layer_has_grown() -> None:
    """Each layer, in MB, against what sizes.json has; a layer that grew is a decision."""
    allowed = json.loads((Path(__file__).parent / "sizes.json").read_text())[FLAVOUR]
    history = json.loads(checked("history", "--format=json", "--no-trunc", IMAGE))
    sizes = [layer["size"] / 1e6 for layer in history]  # newest first
    newest = [mb for mb in sizes if mb > 1][: len(allowed)]
    grown = {
        name: f"{mb:.0f} MB"
        for (name, expected), mb in zip(allowed.items(), newest, strict=True)
        if mb > 1.03 * expected + 1
    }
    assert not grown, f"more than {allowed}: write the new sizes into sizes.json if they are wanted"


@pytest.mark.parametrize("name", ["LICENSE", "NOTICE"])
def test_the_licence_is_in_it(name: str) -> None:
    text = checked("run", "--rm", *CONFINED, "--entrypoint=cat", IMAGE, f"/licenses/{name}")
    assert text == (ROOT / name).read_text(encoding="utf-8").strip()
