"""Recipes of the guides, run as they are written at the API server of KUBECONFIG."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.release import CHART, KUBECTL, NEEDS_SERVER, ROOT, kubectl

GUIDES = ROOT / "docs" / "guides"
HELM = ROOT / ".cache" / "helm" / "4.2.3" / "helm"

pytestmark = pytest.mark.cluster


def blocks(page: str, heading: str, kind: str) -> list[str]:
    """The fenced blocks of a kind under a heading."""
    text = (GUIDES / page).read_text(encoding="utf-8")
    section = re.split(r"\n#{2,3} ", text.partition(f"# {heading}\n")[2])[0]
    return re.findall(rf"```{kind}\n(.*?)```", section, re.DOTALL)


class Shell:
    """A folder with the chart, and a namespace in the place of `models`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.namespace = folder, f"harmonium-test-{uuid.uuid4().hex[:8]}"
        (folder / "bin").mkdir()
        (folder / "bin" / "helm").symlink_to(HELM)
        (folder / "bin" / "kubectl").symlink_to(KUBECTL)
        (folder / "charts").symlink_to(CHART.parent)
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        metadata = {"name": self.namespace, "labels": labels}
        item = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        kubectl("create", "--filename=-", given=json.dumps(item))

    def run(self, commands: str) -> None:
        text = commands.replace("--namespace models", f"--namespace {self.namespace}")
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-e", "-c", text],
            cwd=self.folder,
            env=os.environ | {"PATH": path},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def get(self, kind: str, name: str = "") -> dict[str, Any]:
        place = ("--output=json", "--namespace", self.namespace)
        found: dict[str, Any] = json.loads(kubectl("get", kind, *([name] if name else []), *place))
        return found


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    for release in ("demo", "canary"):
        shell.run(f"helm uninstall {release} --ignore-not-found --namespace models")
    kubectl("delete", "namespace", shell.namespace, "--wait=false")


@NEEDS_SERVER
def test_a_canary_gets_its_part_and_goes(shell: Shell) -> None:
    [values] = blocks("kubernetes.md", "3. Values", "yaml")
    [route] = blocks("kubernetes.md", "A canary", "yaml")
    begin, end = blocks("kubernetes.md", "A canary", "console")
    (shell.folder / "values.yaml").write_text(values, encoding="utf-8")
    (shell.folder / "canary.yaml").write_text(route, encoding="utf-8")
    shell.run("helm install demo charts/harmonium --namespace models --values values.yaml")
    shell.run(begin)

    def shares() -> dict[str, int]:
        """The route's weights, of Services that are there and select pods of one release."""
        [rule] = shell.get("httproute", "assistant")["spec"]["rules"]
        weights = {}
        for backend in rule["backendRefs"]:
            service = shell.get("service", backend["name"])["spec"]
            assert backend["port"] in [port["port"] for port in service["ports"]]
            weights[service["selector"]["app.kubernetes.io/instance"]] = backend["weight"]
        return weights

    assert shares() == {"demo": 95, "canary": 5}
    shell.run(end)
    assert shares() == {"demo": 95}
    [left] = shell.get("deployments")["items"]
    [container] = left["spec"]["template"]["spec"]["containers"]
    assert (left["metadata"]["name"], container["image"].rpartition(":")[2]) == (
        "demo-harmonium",
        "0.3.0-cuda",
    )


@NEEDS_SERVER
def test_the_backup_is_admitted(shell: Shell) -> None:
    """Needs the server's controllers: they make the Job's pod."""
    [item] = blocks("backup.md", "In a cluster", "yaml")
    [commands] = blocks("backup.md", "In a cluster", "console")
    (shell.folder / "backup.yaml").write_text(item, encoding="utf-8")
    shell.run(commands)
    active = ("--for=jsonpath={.status.active}=1", "--timeout=120s")
    kubectl("wait", "job/backup-now", *active, "--namespace", shell.namespace)


def test_the_backup_copies_a_database_in_use(tmp_path: Path) -> None:
    [item] = blocks("backup.md", "In a cluster", "yaml")
    pod = yaml.safe_load(item)["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    [program] = container["args"]
    for mount in container["volumeMounts"]:
        program = program.replace(f'"{mount["mountPath"]}/', f'"{tmp_path}{mount["mountPath"]}/')
    (tmp_path / "cache" / "responses").mkdir(parents=True)
    (tmp_path / "backups").mkdir()
    live = sqlite3.connect(tmp_path / "cache" / "responses" / "responses.sqlite")
    live.executescript("pragma journal_mode=wal; create table t (a); insert into t values (1)")
    live.execute("insert into t values (2)")  # not committed
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    live.close()
    [copy] = (tmp_path / "backups").iterdir()
    assert copy.stat().st_mode & 0o077 == 0
    kept = sqlite3.connect(copy)
    assert kept.execute("select a from t").fetchall() == [(1,)]
    kept.close()
