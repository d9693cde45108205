"""A file of requests is run in the playground, and its results are saved."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.needs import needs

pytestmark = [pytest.mark.browser, needs("batches")]


def line(custom_id: str) -> str:
    messages = [{"role": "user", "content": "Hello"}]
    body = {"model": "nano", "messages": messages, "max_tokens": 8}
    url = "/v1/chat/completions"
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body})


def test_a_file_is_uploaded_run_and_its_results_saved(page: Page, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("".join(f"{line(f'n{n}')}\n" for n in range(12)))
    page.get_by_role("button", name="Batches").click()
    dialog = page.get_by_role("dialog", name="Batches")
    expect(dialog).to_contain_text("There are none yet.")
    dialog.get_by_label("File of requests").set_input_files(source)
    entry = dialog.get_by_role("listitem").first
    expect(entry).to_contain_text("completed")
    expect(entry).to_contain_text("12 of 12 requests")
    with page.expect_download() as saved:
        entry.get_by_role("button", name="Results").click()
    text = Path(saved.value.path()).read_text()
    ids = {json.loads(each)["custom_id"] for each in text.splitlines()}
    assert ids == {f"n{n}" for n in range(12)}


def test_a_file_with_a_fault_says_which_line(page: Page, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(f"{line('a')}\nno request\n")
    page.get_by_role("button", name="Batches").click()
    dialog = page.get_by_role("dialog", name="Batches")
    dialog.get_by_label("File of requests").set_input_files(source)
    entry = dialog.get_by_role("listitem").first
    expect(entry).to_contain_text("failed")
    expect(entry).to_contain_text(re.compile(r"Line 2: .*no valid request"))
