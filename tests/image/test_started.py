"""The image's environment and health check on a process of this machine; needs no image."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import loopback, plain
from tests.service.run.serving import PATIENCE_S, Serving

pytestmark = pytest.mark.heavy

DOCKERFILE = (Path(__file__).parents[2] / "Dockerfile").read_text(encoding="utf-8")
[HOST] = re.findall(r"NIM_SERVER_HOST=(\S+)", DOCKERFILE)
[HEALTH_CHECK] = re.findall(r"^HEALTHCHECK .*\\\n +CMD (.+)$", DOCKERFILE, re.MULTILINE)


def is_healthy(port: int, host: str) -> bool:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    given = {"PATH": path, "NIM_SERVER_PORT": str(port), "NIM_SERVER_HOST": host}
    return subprocess.run(["sh", "-c", HEALTH_CHECK], env=given).returncode == 0


@pytest.mark.parametrize("host", [HOST, loopback.ADDRESS], ids=["as in the image", "loopback"])
def test_it_is_healthy_makes_a_key_and_is_scraped(host: str, tmp_path: Path) -> None:
    options = {"script": [1]}
    port = loopback.free_port()
    server = Serving(
        options, f"--server-port={port}", NIM_SERVER_HOST=host, NIM_CACHE_PATH=str(tmp_path)
    )
    try:
        server.until_ready_is(200)
        assert server.url == f"http://{loopback.IN_URL}:{port}"
        assert is_healthy(port, host)
        assert not is_healthy(loopback.free_port(), host)
        headers = {}
        if host == HOST:
            assert plain.get(f"{server.url}/metrics", timeout=PATIENCE_S).status_code == 401
            [made] = tmp_path.glob("api-key-*")
            headers = {"Authorization": f"Bearer {made.read_text().strip()}"}
        scraped = plain.get(f"{server.url}/metrics", headers=headers, timeout=PATIENCE_S)
        assert "harmonium_engine_up" in scraped.text
    finally:
        server.end()
