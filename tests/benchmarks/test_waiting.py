"""The picture of waiting is that of the results, which keep what docs/overload.md promises."""

from __future__ import annotations

import json

from tools.docs.waiting import PICTURE, RESULTS, drawn


def test_the_picture_is_that_of_the_results() -> None:
    assert PICTURE.read_text(encoding="utf-8") == drawn(), "run make docs"


def test_chats_beside_bulk_in_the_results() -> None:
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    beside, lengths = found["beside"], found["by_length"]
    for case in ("shortest_first", "bulk_is_flex"):
        assert beside[case]["chat_ttft_s"]["p99"] <= 0.5
        assert beside[case]["bulk_s"] <= 1.05 * beside["bulk_alone_s"]
    for before, now in zip(lengths["by_arrival"], lengths["shortest_first"], strict=True):
        assert now["max"] <= 2 * before["max"]
