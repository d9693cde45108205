"""The pages at / and /docs: there without a key, from this server only, light, not sent twice."""

from __future__ import annotations

import gzip
import re
from dataclasses import replace
from typing import Any

import pytest

from auth.authenticators import ApiKeys
from parts.pages.routes import _FOLDER
from parts.pages.serving import SERVING
from parts.pages.settings import Disabled
from service.run.launching import has_page
from service.settings.settings import load
from tests.service.conftest import MakeRuntime

MAX_GZIP_BYTES = 300 * 1024
MAX_PDF_GZIP_BYTES = 550 * 1024
SCRIPT = "<|channel|>final<|message|>Hello.<|return|>"


@pytest.mark.parametrize(("path", "num_links"), [("/", 3), ("/docs", 4)])
async def test_a_page_names_only_files_that_are_here(
    make_client: Any, make_runtime: MakeRuntime, path: str, num_links: int
) -> None:
    client = await make_client(make_runtime(SCRIPT))
    page = await client.get(path)
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    links = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(links) == num_links
    for link in links:
        assert not link.startswith(("/", "http")), "a path prefix would break it"
        assert (await client.get(f"/{link}")).status_code == 200


@pytest.mark.parametrize("path", ["/", "/docs", "/assets/icon.svg"])
async def test_the_policy_lets_in_nothing_from_elsewhere(
    make_client: Any, make_runtime: MakeRuntime, path: str
) -> None:
    client = await make_client(make_runtime(SCRIPT))
    headers = (await client.get(path)).headers
    assert headers["x-dns-prefetch-control"] == "off"
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self';")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


async def test_only_servers_that_are_to_be_compared_may_be_asked(
    make_client: Any, make_runtime: MakeRuntime
) -> None:
    runtime = make_runtime(SCRIPT)
    other = "https://other.example:8000"
    client = await make_client(replace(runtime, cors_origins=("*", other)))
    policy = (await client.get("/")).headers["content-security-policy"]
    assert policy.endswith(f"connect-src 'self' {other}")
    assert (await client.get("/v1/metadata")).json()["compare_origins"] == [other]
    policy = (await (await make_client(runtime)).get("/")).headers["content-security-policy"]
    assert policy.endswith("connect-src 'self'")


async def test_the_pages_need_no_key_and_what_they_ask_for_does(
    make_client: Any, make_runtime: MakeRuntime
) -> None:
    keys = ApiKeys(["sk-0123456789abcdef"])
    client = await make_client(make_runtime(SCRIPT, authenticator=keys))
    for path in ("/", "/docs", "/assets/app.js"):
        assert (await client.get(path)).status_code == 200
    for path in ("/v1/models", "/v1/metadata", "/v1/metrics", "/openapi.json"):
        assert (await client.get(path)).status_code == 401


@pytest.mark.parametrize("path", ["/", "/docs"])
async def test_pages_that_are_switched_off_say_where_the_api_is(
    make_client: Any, make_runtime: MakeRuntime, path: str
) -> None:
    client = await make_client(replace(make_runtime(SCRIPT), parts=(Disabled(),)))
    answer = await client.get(path)
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert error["code"] == "route_not_found"
    assert "NIM_DISABLE_PLAYGROUND" in error["message"]
    assert "/v1/models" in error["message"]
    assert (await client.get("/assets/app.js")).status_code == 404
    assert (await client.get("/v1/models")).status_code == 200


@pytest.mark.parametrize(
    ("path", "root"), [("/nowhere", "./"), ("/v1/no/where", "../../"), ("/docs/no", "../")]
)
async def test_a_person_who_is_lost_finds_the_way(
    make_client: Any, make_runtime: MakeRuntime, path: str, root: str
) -> None:
    runtime = SERVING.wire(make_runtime(SCRIPT), load())
    client = await make_client(runtime)
    shown = await client.get(path, headers={"Accept": "text/html,application/xhtml+xml"})
    assert (shown.status_code, shown.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert f'<a href="{root}">' in shown.text
    assert f'<a href="{root}docs">' in shown.text
    assert (await client.get(path)).json()["error"]["code"] == "route_not_found"
    closed = SERVING.wire(make_runtime(SCRIPT), load({"disable_playground": True}))
    refused = await (await make_client(closed)).get(path, headers={"Accept": "text/html"})
    assert refused.json()["error"]["code"] == "route_not_found"


async def test_the_service_worker_may_answer_for_the_page(
    make_client: Any, make_runtime: MakeRuntime
) -> None:
    client = await make_client(make_runtime(SCRIPT))
    worker = await client.get("/assets/offline.js")
    assert worker.headers["service-worker-allowed"] == "../"
    for name in re.findall(r'"([\w.-]+\.(?:js|css|svg))"', worker.text):
        assert (await client.get(f"/assets/{name}")).status_code == 200


@pytest.mark.parametrize("path", ["/", "/docs", "/assets/app.js"])
async def test_pages_are_asked_for_again_and_not_sent_again(
    make_client: Any, make_runtime: MakeRuntime, path: str
) -> None:
    client = await make_client(make_runtime(SCRIPT))
    page = await client.get(path)
    assert page.status_code == 200
    assert page.headers["cache-control"] == "no-cache"
    again = await client.get(path, headers={"If-None-Match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    headed = await client.head(path)
    assert {*headed.headers} == {*page.headers}


async def test_files_travel_compressed_where_the_browser_can_read_that(
    make_client: Any, make_runtime: MakeRuntime
) -> None:
    client = await make_client(make_runtime(SCRIPT))
    plain = await client.get("/assets/app.js", headers={"Accept-Encoding": "identity"})
    small = await client.get("/assets/app.js", headers={"Accept-Encoding": "br, gzip"})
    assert "content-encoding" not in plain.headers
    assert small.headers["content-encoding"] == "gzip"
    assert small.content == plain.content == (_FOLDER / "app.js").read_bytes()
    assert int(small.headers["content-length"]) < int(plain.headers["content-length"]) / 2
    assert small.headers["etag"] != plain.headers["etag"]
    assert small.headers["vary"] == "Accept-Encoding"


@pytest.mark.parametrize("name", ["app.ts", "..%2Froutes.py", "%2Fetc%2Fpasswd", "index.html/x"])
async def test_no_other_file_is_served(
    make_client: Any, make_runtime: MakeRuntime, name: str
) -> None:
    client = await make_client(make_runtime(SCRIPT))
    assert (await client.get(f"/assets/{name}")).status_code == 404


def test_the_page_is_light() -> None:
    sizes = {path.name: len(gzip.compress(path.read_bytes())) for path in _FOLDER.iterdir()}
    assert sizes.pop("pdf.js") < MAX_PDF_GZIP_BYTES  # only who attaches a PDF fetches it
    assert sum(sizes.values()) < MAX_GZIP_BYTES, sizes


async def test_what_reads_pdfs_may_ask_for_nothing(
    make_client: Any, make_runtime: MakeRuntime
) -> None:
    client = await make_client(make_runtime(SCRIPT))
    policy = (await client.get("/assets/pdf.js")).headers["content-security-policy"]
    assert policy == "default-src 'none'"
    assert "pdf.js" not in (await client.get("/assets/offline.js")).text


@pytest.mark.parametrize("is_disabled", [True, False])
def test_the_setting_takes_the_pages_away(make_runtime: MakeRuntime, is_disabled: bool) -> None:
    settings = load({"disable_playground": is_disabled})
    wired = SERVING.wire(make_runtime(SCRIPT), settings)
    assert (wired.of(Disabled) is not None) is is_disabled
    assert has_page(settings) is not is_disabled
