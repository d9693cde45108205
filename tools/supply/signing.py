"""Attestations by cosign: a bundle beside each artefact, signed with a key, without a network."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

TYPES = {"sbom": "cyclonedx", "provenance": "slsaprovenance1", "vex": "openvex"}


class Unverified(Exception):
    """What is here is not what was signed; the message has cosign's words."""


@dataclass(frozen=True, slots=True)
class Cosign:
    """cosign with one pair of keys; the private one is needed to sign only.

    Without it, it signs by the identity of the CI run."""

    program: str
    public: Path
    private: Path | None = None

    def sign(self, artefact: Path) -> None:
        """Sign the artefact itself."""
        self._run(
            *("sign-blob", "--yes", *self._key(artefact.parent)),
            *("--bundle", str(bundle_of(artefact, "signature")), str(artefact)),
        )

    def attest(self, artefact: Path, kind: str, predicate: Path) -> None:
        """Sign that the predicate is true of the artefact."""
        self._run(
            *("attest-blob", "--yes", *self._key(artefact.parent), "--type", TYPES[kind]),
            *("--predicate", str(predicate), "--bundle", str(bundle_of(artefact, kind))),
            str(artefact),
        )

    def verify(self, artefact: Path, predicates: Mapping[str, Path]) -> list[str]:
        """Check the signature, and that each predicate is what was signed, by its kind.

        Raises Unverified for the first that fails.
        """
        known = ("--key", str(self.public), "--insecure-ignore-tlog=true")  # there is no network
        signature = bundle_of(artefact, "signature")
        self._run("verify-blob", *known, "--bundle", str(signature), str(artefact))
        for kind, predicate in predicates.items():
            bundle = bundle_of(artefact, kind)
            self._run(
                *("verify-blob-attestation", *known, "--type", TYPES[kind]),
                *("--bundle", str(bundle), str(artefact)),
            )
            envelope = json.loads(bundle.read_text(encoding="utf-8"))["dsseEnvelope"]
            signed = json.loads(base64.b64decode(envelope["payload"]))["predicate"]
            if signed != json.loads(predicate.read_text(encoding="utf-8")):
                raise Unverified(f"{predicate.name} is not the {kind} that was signed")
        return ["signature", *predicates]

    def _key(self, folder: Path) -> tuple[str, ...]:
        if self.private is None:
            return ()  # by the identity of a CI run, whose certificate goes into the bundle
        config = folder / "signing-config.json"
        if not config.exists():  # without a log of signatures, which needs a network
            self._run("signing-config", "create", "--out", str(config))
        return "--key", str(self.private), "--signing-config", str(config)

    def _run(self, *arguments: str) -> None:
        environment = {"COSIGN_PASSWORD": "", **os.environ}
        done = subprocess.run(
            (self.program, *arguments), capture_output=True, text=True, env=environment
        )
        if done.returncode:
            words = [line for line in done.stderr.splitlines() if "WARNING" not in line]
            raise Unverified(f"cosign {arguments[0]}: {' '.join(words[-1:])}")


def new_keys(program: str, folder: Path) -> Cosign:
    """Make a pair of keys in a folder."""
    environment = {"COSIGN_PASSWORD": "", **os.environ}
    command = (program, "generate-key-pair")
    subprocess.run(command, cwd=folder, check=True, capture_output=True, env=environment)
    return Cosign(program, folder / "cosign.pub", folder / "cosign.key")


def bundle_of(artefact: Path, kind: str) -> Path:
    """Where a signature or attestation lies."""
    return artefact.with_name(f"{artefact.name}.{kind}.sigstore.json")
