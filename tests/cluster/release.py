"""A release at the API server of KUBECONFIG, in a namespace of its own."""

from __future__ import annotations

import json
import subprocess
import uuid
from pathlib import Path

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "harmonium"
KUBECTL = ROOT / ".cache" / "kubectl" / "1.36.3" / "kubectl"
BY_THE_CHART = ("execution error at (harmonium/", "meet the specifications of the schema")


class Release:
    """A release of one scenario in a namespace of its own."""

    def __init__(self, helm: Path, scenario: Path) -> None:
        self.namespace = f"harmonium-test-{uuid.uuid4().hex[:8]}"
        self._helm, self.scenario = helm, scenario
        self.kubectl("create", "namespace", self.namespace)

    def kubectl(self, *arguments: str) -> str:
        done = subprocess.run(
            [KUBECTL, *arguments], capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

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
        self.kubectl("delete", "namespace", self.namespace, "--wait=false")

    def begin(self, change: str = "") -> str:
        """Install it anew, and bind its claims: no node is there that would."""
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

    def _claims(self) -> list[dict[str, str]]:
        listed = self.kubectl("get", "pvc", "--output=json", "--namespace", self.namespace)
        return [
            {
                "name": item["metadata"]["name"],
                "size": item["spec"]["resources"]["requests"]["storage"],
                "volume": item["spec"].get("volumeName", ""),
            }
            for item in json.loads(listed)["items"]
        ]

    def _let_go(self) -> None:
        for claim in self._claims():
            patch = '{"metadata": {"finalizers": null}}'
            self.kubectl("patch", "pvc", claim["name"], "-p", patch, "--namespace", self.namespace)

    def bind(self) -> None:
        for claim in self._claims():
            place = ("pvc", claim["name"], "--namespace", self.namespace)
            if not claim["volume"]:
                volume = f"{self.namespace}-{claim['name']}"
                patch = json.dumps({"spec": {"volumeName": volume}})
                self.kubectl("patch", *place, "-p", patch)
            status = {"phase": "Bound", "capacity": {"storage": claim["size"]}}
            patch = json.dumps({"status": status})
            self.kubectl("patch", *place, "--subresource=status", "-p", patch)
