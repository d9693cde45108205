"""Little work stays on one thread."""

from __future__ import annotations

from typing import Any

import torch


def test_threads_follow_the_work(make_folder: Any, drive: Any, token_ids: Any) -> None:
    """A wide head is worth two threads, a narrow one is not."""
    checkpoint = make_folder(vocab_size=40_000)
    driver = drive(checkpoint, checkpoint.load(num_threads=2))
    sequence = driver.sequence(token_ids(20))
    driver.step((sequence, 5))
    num_for_head = torch.get_num_threads()
    small = make_folder()
    driver = drive(small, small.load(num_threads=2))
    driver.step((driver.sequence(token_ids(20)), 5))
    assert (num_for_head, torch.get_num_threads()) == (2, 1)
