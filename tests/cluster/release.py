"""A release at the API server of KUBECONFIG, in a namespace of its own."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "harmonium"
KUBECTL = ROOT / ".cache" / "kubectl" / "1.36.3" / "kubectl"
PATIENCE_S = 1200  # a rollout on a busy machine
NEEDS_SERVER = pytest.mark.skipif(
    not os.environ.get("KUBECONFIG"), reason="no API server: `make cluster` says how it finds one"
)
BY_THE_CHART = ("execution error at (harmonium/", "meet the specifications of the schema")


def kubectl(*arguments: str, given: str = "", may_lack: bool = False) -> str:
    done = subprocess.run(
        [KUBECTL, *arguments],
        input=given,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    is_lacked = may_lack and "(NotFound)" in done.stderr
    assert done.returncode == 0 or is_lacked, done.stderr
    return done.stdout


class Release:
    """A release of one scenario in a namespace of its own."""

    def __init__(self, helm: Path, scenario: Path) -> None:
        self.namespace = f"harmonium-test-{uuid.uuid4().hex[:8]}"
        self._helm, self.scenario = helm, scenario
        self.kubectl("create", "namespace", self.namespace)

    def kubectl(self, *arguments: str, given: str = "", may_lack: bool = False) -> str:
        return kubectl(*arguments, given=given, may_lack=may_lack)

    def render(self, change: str = "") -> str | None:
        """What a change would send, as far as this machine knows; None: the chart refuses it."""
        values = ("--values", self.scenario, *(("--set", change) if change else ()))
        done = subprocess.run(
            [self._helm, "template", "demo", CHART, *values],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0 or any(sign in done.stderr for sign in BY_THE_CHART), (
            done.stderr
        )
        return done.stdout if done.returncode == 0 else None

    def helm(self, *arguments: str | Path) -> str:
        """What it complains about; empty: it worked."""
        done = subprocess.run(
            [self._helm, *arguments, "--namespace", self.namespace],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return "" if done.returncode == 0 else done.stderr.strip() or "failed"

    def upgrade(self, change: str = "") -> str:
        values = ("--values", self.scenario)
        return self.helm("upgrade", "demo", CHART, *values, *(("--set", change) if change else ()))

    def close(self) -> None:
        self.helm("uninstall", "demo")
        self._let_go()
        self.kubectl("delete", "namespace", self.namespace, "--wait=false")

    def begin(self, change: str = "") -> str:
        """Install it anew, and bind its claims."""
        self.helm("uninstall", "demo", "--ignore-not-found", "--cascade=background")
        kinds = "all,pvc,secret,configmap,serviceaccount,jobs"
        self.kubectl("delete", kinds, "--all", "--namespace", self.namespace, "--wait=false")
        self._let_go()
        if "kubernetes: nim-operator" in self.scenario.read_text():
            self.kubectl("delete", "nimcaches", "--all", "--namespace", self.namespace)
        values = ("--values", self.scenario, *(("--set", change) if change else ()))
        failed = self.helm("install", "demo", CHART, *values)
        self.bind()
        return failed

    def _claims(self) -> list[dict[str, Any]]:
        listed = self.kubectl("get", "pvc", "--output=json", "--namespace", self.namespace)
        items: list[dict[str, Any]] = json.loads(listed)["items"]
        return items

    def _let_go(self) -> None:
        for claim in self._claims():
            name = claim["metadata"]["name"]
            patch = '{"metadata": {"finalizers": null}}'
            place = ("pvc", name, "--namespace", self.namespace)
            self.kubectl("patch", *place, "-p", patch, may_lack=True)  # it may be gone by now
            self.kubectl("delete", "pv", self._volume(name), "--ignore-not-found", "--wait=false")

    def _volume(self, claim: str) -> str:
        return f"{self.namespace}-{claim}"

    def bind(self) -> None:
        """Give each claim a volume of its size: no node is there that would."""
        for claim in self._claims():
            name, size = (
                claim["metadata"]["name"],
                claim["spec"]["resources"]["requests"]["storage"],
            )
            volume = self._volume(name)
            item = {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": volume},
                "spec": {
                    "capacity": {"storage": size},
                    "accessModes": claim["spec"]["accessModes"],
                    "storageClassName": claim["spec"].get("storageClassName", ""),
                    "csi": {"driver": "example.com", "volumeHandle": volume},
                    "claimRef": {"namespace": self.namespace, "name": name},
                },
            }
            self.kubectl("apply", "--server-side", "--filename=-", given=json.dumps(item))
            place = ("pvc", name, "--namespace", self.namespace)
            if not claim["spec"].get("volumeName"):
                patch = json.dumps({"spec": {"volumeName": volume}})
                self.kubectl("patch", *place, "-p", patch)
            status = {"phase": "Bound", "capacity": {"storage": size}}
            patch = json.dumps({"status": status})
            self.kubectl("patch", *place, "--subresource=status", "-p", patch)
