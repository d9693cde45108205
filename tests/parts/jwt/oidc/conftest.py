"""A real OpenID provider on loopback (npm's oidc-provider), with keys that the test holds too."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import jwt
import pytest

ROOT = Path(__file__).parents[4]
FOLDER = ROOT / ".cache" / "oidc"
SCRIPT = Path(__file__).with_name("provider.mjs")


class Provider:
    """The running provider; `rotate` gives it new keys that sign from then on."""

    def __init__(self, node: str, idp: Any) -> None:
        self._node = node
        self.idp = idp  # signs with the very keys of the provider
        self.generation = 0
        self._old: list[dict[str, Any]] = []
        self.start()

    def start(self) -> None:
        command = [self._node, "--input-type=module", "--eval", SCRIPT.read_text()]
        self.process = subprocess.Popen(
            command,
            cwd=FOLDER,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            self._serve()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def rotate(self) -> None:
        """New keys under new ids; the old ones stay in the key set."""
        self._old = self._keys()
        self.idp = type(self.idp)()
        self.generation += 1
        self._serve()

    def _serve(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"keys": self._keys() + self._old}) + "\n")
        self.process.stdin.flush()
        # It has notices for that stream, too.
        lines = (line.strip() for line in iter(self.process.stdout.readline, ""))
        self.issuer = next((line for line in lines if line.startswith("http://")), "")
        assert self.issuer, "the provider did not start"
        self.idp.issuer = self.issuer

    def _keys(self) -> list[dict[str, Any]]:
        pairs = (("rsa", "RS256", self.idp.rsa), ("ec", "ES256", self.idp.ec))
        made = []
        for kind, alg, key in pairs:
            jwk = jwt.get_algorithm_by_name(alg).to_jwk(key, as_dict=True)
            jwk.pop("key_ops", None)
            made.append(jwk | {"kid": f"{kind}{self.generation + 1}", "alg": alg, "use": "sig"})
        return made

    def token(self, alg: str = "RS256", scope: str = "inference models") -> str:
        """One that the provider itself gives out for a client's secret."""
        form = {
            "grant_type": "client_credentials",
            "client_id": "ann",
            "client_secret": "ann-secret",
            "resource": "urn:es" if alg == "ES256" else "urn:rs",
            "scope": scope,
        }
        answer = httpx2.post(f"{self.issuer}/token", data=form, timeout=60)
        assert answer.status_code == 200, answer.text
        token: str = answer.json()["access_token"]
        return token


@pytest.fixture
def provider(idp: Any) -> Iterator[Provider]:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node here: install Node.js to test with a real OpenID provider")
    if not (FOLDER / ".ready").exists():
        pytest.skip("no OpenID provider here: `make oidc` installs one from npm")
    running = Provider(node, type(idp)())
    yield running
    running.stop()
