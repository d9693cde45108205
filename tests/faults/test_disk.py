"""A full disk: under the log, and under the store of responses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.needs import needs

pytestmark = pytest.mark.faults

WRITABLE = -1  # no limit


def test_a_full_disk_under_the_log_costs_the_log_only(serve: Any) -> None:
    server = serve(log=Path("/dev/full"))
    assert [server.chat().status_code for _ in range(20)] == [200] * 20
    memory = server.api.memory_info().rss
    assert [server.chat().status_code for _ in range(200)] == [200] * 200
    grown = server.api.memory_info().rss - memory
    assert grown < 8 << 20
    assert "[DONE]" in server.chat(stream=True).text
    assert server.ready_status() == 200
    assert server.interrupt() == 0


@needs("responses")
def test_a_full_disk_under_the_store_costs_the_storing_only(serve: Any, tmp_path: Path) -> None:
    store = tmp_path / "store" / "responses.sqlite"
    server = serve(NIM_RESPONSES_PATH=str(store))
    kept = server.post("/v1/responses", input="Hi").json()
    assert kept["store"] is True

    server.limit(psutil.RLIMIT_FSIZE, 0)
    lost = server.post("/v1/responses", input="Hi")
    assert lost.status_code == 200  # the answer is whole
    assert lost.json()["output"][-1]["content"][0]["text"] == "word word word"
    assert lost.json()["store"] is False  # and says what became of it
    streamed = server.post("/v1/responses", input="Hi", stream=True).text
    assert '"response.completed"' in streamed
    refused = server.post("/v1/responses", input="Hi", background=True)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_failed")
    assert server.client.get(f"/v1/responses/{lost.json()['id']}").status_code in (404, 503)
    assert server.chat().status_code == 200
    assert server.ready_status() == 200  # requests are served

    server.limit(psutil.RLIMIT_FSIZE, WRITABLE)
    again = server.post("/v1/responses", input="Hi").json()
    assert again["store"] is True
    for response in (kept, again):
        assert server.client.get(f"/v1/responses/{response['id']}").json() == response
    assert server.interrupt() == 0
