"""Which part of a decode step each kernel's time is put to."""

from __future__ import annotations

import pytest

from tools.benchmarks.step_parts import PARTS, Kernel, parts_us

STEP = [  # name, microseconds before it in which nothing runs, microseconds that it takes
    ("embed_kernel", 0, 2),
    ("rows_kernel", 1, 10),
    ("decode_attention_kernel", 0, 5),
    ("rows_kernel", 0, 8),
    ("choose_kernel", 0, 3),
    ("gate_up_grouped_kernel", 0, 40),
    ("down_grouped_kernel", 0, 20),
    ("add_norm_kernel", 0, 1),
    ("rows_kernel", 0, 100),
    ("draw_kernel", 2, 7),
    ("Memcpy DtoH (Device -> Pinned)", 0, 1),
]


def steps(num: int, between: float = 30.0) -> list[Kernel]:
    found, now = [], 0.0
    for _ in range(num):
        for name, gap, took in STEP:
            found.append(Kernel(name, now + gap, now + gap + took))
            now += gap + took
        now += between
    return found


def test_every_microsecond_is_of_one_part() -> None:
    found = parts_us(steps(4))
    assert found == {
        "experts": 60, "attention": 5, "dense products": 18, "head": 100, "router": 3, "norms": 3,
        "sampling": 7, "copies": 1, "launches": 3, "between steps": 30,
    }  # fmt: skip
    assert tuple(found) == PARTS
    assert sum(found.values()) == sum(gap + took for _, gap, took in STEP) + 30


def test_a_kernel_that_begins_early_counts_from_the_end_of_the_one_before() -> None:
    kernels = [
        Kernel(each.name, each.start_us - 4, each.end_us)
        if each.name == "decode_attention_kernel"
        else each
        for each in steps(3)
    ]
    assert parts_us(kernels) == parts_us(steps(3))


def test_kernels_of_a_step_that_began_before_are_left_out_and_one_slow_step_changes_nothing() -> (
    None
):
    kernels = steps(5)
    late = [Kernel(each.name, each.start_us + 1000, each.end_us + 1000) for each in kernels[44:]]
    before = [Kernel("rows_kernel", -50.0, -1.0)]
    assert parts_us([*before, *kernels[:44], *late]) == parts_us(kernels)


def test_one_step_alone_is_refused_as_its_end_is_not_known() -> None:
    with pytest.raises(ValueError, match="there are 1 steps that begin with embed_kernel"):
        parts_us(steps(1))
