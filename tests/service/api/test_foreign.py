"""What stands in a prompt for parts of each API's kinds."""

from __future__ import annotations

from typing import Any

import pytest

from service.api.common.foreign import ForeignPart, joined

READS_TEXT = ": this model reads text only]"
PDF = {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}


@pytest.mark.parametrize(
    ("part", "line"),
    [
        ({"type": "image_url", "image_url": {"url": "data:image/gif;base64,AA=="}}, "image/gif, 1"),
        ({"type": "image_url", "image_url": {"url": "https://x/y.png"}}, "image, https://x/y.png"),
        ({"type": "input_image", "file_id": "file-1"}, "image, file-1"),
        ({"type": "image", "data": "AAA=", "mimeType": "image/png"}, "image/png, 2"),
        ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, "audio/wav, 3"),
        ({"type": "document", "title": "R", "source": PDF}, "R, application/pdf, 3"),
        ({"type": "computer_screenshot", "image_url": "https://x"}, "computer_screenshot, https"),
        ({"type": "input_file", "filename": "a\nb.zip", "file_data": "AAAA"}, "a b.zip, file, 3"),
        (
            {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,/w=="},
            "a.txt, text/plain, 1",  # not UTF-8
        ),
        ({"type": "resource", "resource": {"uri": "a:/b", "blob": "AAAA"}}, "resource, 3"),
        ({"type": "thought_of_tomorrow", "x": [1]}, "thought_of_tomorrow"),
        ({"type": "image_url", "image_url": {"url": f"https://{'x' * 999}"}}, "image, https://xxx"),
    ],
)
def test_a_part_that_cannot_be_read_is_named_with_its_size_or_address(
    part: dict[str, Any], line: str
) -> None:
    read = ForeignPart.model_validate(part)
    assert read.is_unread
    assert read.text.startswith(f"[{line}")
    assert read.text.endswith(READS_TEXT)
    assert len(read.text) < 300
    assert "\n" not in read.text


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (
            {
                "type": "input_file",
                "filename": "a.csv",
                "file_data": "data:text/csv;base64,YSxi",
            },
            "a.csv\n\na,b",
        ),
        ({"type": "file", "file": {"filename": "a.py", "file_data": "eCA9IDE="}}, "a.py\n\nx = 1"),
        ({"type": "file", "file": {"file_data": "data:application/json,%7B%7D"}}, "{}"),
        (
            {
                "type": "document",
                "title": "T",
                "context": "C",
                "source": {"type": "content", "content": [{"type": "text", "text": "a"}]},
            },
            "T\n\nC\n\na",
        ),
        (
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "text/plain", "data": "YQ=="},
            },
            "a",
        ),
        (
            {
                "type": "search_result",
                "title": "T",
                "source": "https://x",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            },
            "T\n\nhttps://x\n\nab",
        ),
        ({"type": "resource", "resource": {"uri": "a:/b", "text": "c"}}, "c"),
        ({"type": "input_text", "text": "of another route"}, "of another route"),
    ],
)
def test_text_is_text_whatever_it_is_called(part: dict[str, Any], text: str) -> None:
    read = ForeignPart.model_validate(part)
    assert not read.is_unread
    assert read.text == text


def test_foreign_parts_stand_on_lines_of_their_own_and_texts_stay_joined() -> None:
    parts = [("a", False), ("b", False), ("[x]", True), ("[y]", True), ("c\n", False), ("z", True)]
    assert joined(parts) == "ab\n[x]\n[y]\nc\nz"
