"""Files: uploaded to the disk in pieces, listed, read and deleted, within bounds."""

from __future__ import annotations

import asyncio
import errno
import io
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from parts.batches.files import upload as uploads
from parts.batches.files.folder import append
from parts.batches.store.base import StorageFull
from parts.batches.stored import storage_of
from tests.parts.batches.conftest import jsonl, line, upload


async def test_a_file_comes_back_as_it_was(open_service: Any, tmp_path: Path) -> None:
    client = await open_service()
    body = jsonl(*(line(f"n{n}", user="ü" * 500) for n in range(3000)))
    assert len(body) > 2 << 20
    file = (await upload(client, body)).json()
    assert file["bytes"] == len(body)
    assert (file["object"], file["status"], file["purpose"]) == ("file", "processed", "batch")
    assert file["filename"] == "in.jsonl"
    assert file["expires_at"] - file["created_at"] == 30 * 86_400
    assert (await client.get(f"/v1/files/{file['id']}")).json() == file
    assert (await client.get(f"/v1/files/{file['id']}/content")).content == body
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "files").iterdir()] == [0o600]
    gone = (await client.delete(f"/v1/files/{file['id']}")).json()
    assert gone == {"id": file["id"], "object": "file", "deleted": True}
    assert (await client.get(f"/v1/files/{file['id']}/content")).status_code == 404
    assert list((tmp_path / "files").iterdir()) == []


async def test_an_upload_is_written_as_it_comes(open_service: Any, tmp_path: Path) -> None:
    """Whatever its size: what has come is on the disk before the rest was sent."""
    client = await open_service()
    seen: list[int] = []

    async def form() -> AsyncIterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
        for _ in range(64):
            yield b"y" * 65_535 + b"\n"
            seen.append(sum(path.stat().st_size for path in (tmp_path / "files").iterdir()))
        yield b"\r\n--x--\r\n"

    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    transport_chunks = form()

    received: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        chunk = await anext(transport_chunks, None)
        return {"type": "http.request", "body": chunk or b"", "more_body": chunk is not None}

    async def send(message: Any) -> None:
        received.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/files",
        "raw_path": b"/v1/files",
        "query_string": b"",
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "state": {},
    }
    await client.runtime.jobs.app(scope, receive, send)
    assert received[0]["status"] == 200
    most_held = max(65_536 * (number + 1) - size for number, size in enumerate(seen))
    assert most_held <= 2 << 20


@pytest.mark.parametrize(
    ("data", "param"),
    [
        ({"purpose": "fine-tune"}, "purpose"),
        (
            {"expires_after[anchor]": "now", "expires_after[seconds]": "3600"},
            "expires_after[anchor]",
        ),
        ({"expires_after[anchor]": "created_at"}, "expires_after[seconds]"),
        (
            {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3599"},
            "expires_after[seconds]",
        ),
        ({"colour": "red"}, "colour"),
    ],
)
async def test_a_wrong_field_of_the_form_is_named(
    open_service: Any, tmp_path: Path, data: dict[str, str], param: str
) -> None:
    client = await open_service()
    answer = await upload(client, jsonl(line("a")), data=data)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert list((tmp_path / "files").iterdir()) == []


@pytest.mark.parametrize(
    ("content_type", "body", "status"),
    [
        ("application/json", b"{}", 415),
        ("multipart/form-data", b"", 415),
        ("multipart/form-data; boundary=x", b"no form", 400),
        ("multipart/form-data; boundary=x", b"--x\r\nContent-Disposition: form-data; na", 400),
        ("multipart/form-data; boundary=x", b"--x--\r\n", 400),
        ("multipart/form-data; boundary=x", b"--x\r\n" + b"a" * 9000 + b": b\r\n\r\n", 400),
    ],
)
async def test_what_is_no_form_is_refused(
    open_service: Any, tmp_path: Path, content_type: str, body: bytes, status: int
) -> None:
    client = await open_service()
    headers = {"Content-Type": content_type}
    answer = await client.post("/v1/files", content=body, headers=headers)
    assert answer.status_code == status, answer.text
    assert not (tmp_path / "files").exists() or list((tmp_path / "files").iterdir()) == []


async def test_size_and_lines_are_bounded(
    open_service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await open_service()
    answer = await upload(client, b"{}\n" * 50_001)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "batch_too_large")
    monkeypatch.setattr(uploads, "MAX_BYTES", 1000)
    answer = await upload(client, b"x" * 1001)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "file_too_large")


async def test_a_tenant_may_fill_half_of_the_storage(open_service: Any) -> None:
    client = await open_service(scopes=frozenset({"batch"}), max_bytes=20_000)
    ann, bob = ({"X-API-Key": name} for name in ("ann", "bob"))
    first = await upload(client, b"x" * 9000, headers=ann)
    assert first.status_code == 200
    full = await upload(client, b"x" * 9000, headers=ann)
    assert (full.status_code, full.json()["error"]["code"]) == (503, "storage_full")
    assert (await upload(client, b"x" * 9000, headers=bob)).status_code == 200
    await client.delete(f"/v1/files/{first.json()['id']}", headers=ann)
    assert (await upload(client, b"x" * 9000, headers=ann)).status_code == 200


async def test_a_full_disk_is_told(
    open_service: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    client = await open_service()

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        answer = await upload(client, b"{}\n")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "storage_full")
    assert list((tmp_path / "files").iterdir()) == []
    assert (await upload(client, b"{}\n")).status_code == 200


async def test_pages_of_files(open_service: Any) -> None:
    client = await open_service()
    ids = [(await upload(client, b"{}\n")).json()["id"] for _ in range(4)]
    page = (await client.get("/v1/files", params={"limit": 3, "order": "asc"})).json()
    assert [each["id"] for each in page["data"]] == ids[:3]
    assert page["has_more"]
    after = {"after": page["last_id"], "order": "asc"}
    assert [f["id"] for f in (await client.get("/v1/files", params=after)).json()["data"]] == ids[
        3:
    ]
    output = (await client.get("/v1/files", params={"purpose": "batch_output"})).json()
    assert (output["data"], output["first_id"]) == ([], None)
    assert len((await client.get("/v1/files", params={"purpose": "batch"})).json()["data"]) == 4


async def test_what_is_over_is_gone_with_its_content(open_service: Any, tmp_path: Path) -> None:
    client = await open_service()
    data = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    short = (await upload(client, b"{}\n", data=data)).json()
    assert short["expires_at"] - short["created_at"] == 3600
    long = (await upload(client, b"{}\n")).json()
    storage = storage_of(client.runtime)
    found = await storage.store.get("file", short["id"], "")
    assert 3500 < found.lasts_s <= 3600
    await storage.store.delete("file", short["id"], "")
    await storage.store.put(
        type(found)(**{name: getattr(found, name) for name in found.__slots__} | {"lasts_s": -1})
    )
    assert (await client.get(f"/v1/files/{short['id']}")).status_code == 404
    assert [f["id"] for f in (await client.get("/v1/files")).json()["data"]] == [long["id"]]
    assert await storage.store.sweep(10) == [found.content]
    assert await storage.store.sweep(10) == []


async def test_an_upload_that_breaks_off_leaves_nothing(open_service: Any, tmp_path: Path) -> None:
    client = await open_service()
    head = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    answer = await client.post("/v1/files", content=head + b"y" * 100_000, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_form")
    assert await asyncio.to_thread(lambda: list((tmp_path / "files").iterdir())) == []


def test_a_line_that_does_not_fit_leaves_nothing(tmp_path: Path) -> None:
    class Full(io.FileIO):
        def write(self, data: Any) -> int:
            if self.tell() >= 8:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data[:3])

    with Full(tmp_path / "file", "w+") as file:
        assert append(file, [b"abcde\n"]) == 6
        with pytest.raises(StorageFull):
            append(file, [b"fgh", b"ijk\n"])
        assert (tmp_path / "file").read_bytes() == b"abcde\n"
