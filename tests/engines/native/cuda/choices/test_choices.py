"""Which kernel variants a card gets."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from engines.native.backends.cuda.card import KB, KNOWN, Card
from engines.native.backends.cuda.choices.hopper import H100, HOPPER
from engines.native.backends.cuda.choices.of_card import MAX_ROWS, CardChoices, table_for
from engines.native.backends.cuda.choices.variants import Grouped, StreamLaunch
from engines.native.backends.cuda.graphs.captured import decode_sizes
from engines.native.backends.cuda.offline.building import choices_of
from engines.native.backends.cuda.offline.published import gpt_oss

MODEL = gpt_oss("20b")


@pytest.mark.parametrize("card", KNOWN.values(), ids=str)
def test_every_card_has_variants_for_every_size_of_step(card: Card) -> None:
    choices = CardChoices(card)
    for rows in decode_sizes(MAX_ROWS):
        for is_packed in (True, False):
            variants = choices.decode(rows, MODEL, is_packed)
            assert card.capability >= (9, 0) or not variants.early
            assert variants.splits >= 1
    for tokens in (1, 64, 500, 8192):
        assert choices.prefill(tokens, MODEL).gate_up.bm >= 16


@pytest.mark.parametrize(
    ("card", "architecture"),
    [
        (Card("NVIDIA Thor", (11, 0), 20, 227 * KB), 100),
        (Card("NVIDIA of tomorrow", (13, 0), 200, 99 * KB), 120),
        (Card("NVIDIA of tomorrow", (13, 0), 200, 256 * KB), 100),
        (Card("Orin", (8, 7), 16, 163 * KB), 80),
    ],
)
def test_a_card_that_nobody_knows_gets_variants_that_fit(card: Card, architecture: int) -> None:
    assert table_for(card) is table_for(KNOWN[architecture])


def test_a_context_is_split_for_the_number_of_sms() -> None:
    l4 = Card("NVIDIA L4", (8, 9), 58, 99 * KB)
    known = CardChoices(KNOWN[89]).decode(1, MODEL)
    assert CardChoices(l4).decode(1, MODEL).splits == known.splits // 2


def test_only_a_card_that_was_not_measured_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    CardChoices(KNOWN[90]).tell()
    assert not caplog.records
    CardChoices(KNOWN[100]).tell()
    assert "B200: kernel choices are not tuned for this GPU" in caplog.text


@pytest.mark.parametrize("card", KNOWN.values(), ids=str)
def test_experts_are_chosen_by_the_rows_that_each_has(card: Card) -> None:
    """gpt-oss-120b has four times as many experts as the model of the tables."""
    choices, few, many = CardChoices(card), MODEL, gpt_oss("120b")
    for rows in (32, 64, 128, 256, 512, 1024):
        narrow, wide = choices.decode(rows // 4, few), choices.decode(rows, many)
        assert wide.gate_up == narrow.gate_up
        is_other = isinstance(wide.down, StreamLaunch) and wide.down.stages
        assert wide.down == (choices.table.down_of_many if is_other else narrow.down)
        assert wide.qkv == choices.decode(rows, few).qkv  # dense products have all rows
    assert choices.decode(1, many) == choices.decode(1, few)
    assert choices.table.of_model(few) == replace(choices.table, narrow={})


def test_a_rank_has_variants_of_its_own_until_they_are_measured() -> None:
    """Tuned ones are of the rank's shape already."""
    choices, part = CardChoices(KNOWN[90]), replace(MODEL, intermediate_size=1440)
    for rows, is_other in ((1, True), (8, True), (32, False)):
        assert (choices.decode(rows, part) != choices.decode(rows, MODEL)) == is_other
    table = choices.table.of_model(MODEL)  # as `build-engine --tune` starts from
    assert CardChoices(KNOWN[90], table).decode(1, part) == choices.decode(1, MODEL)


def test_experts_of_a_large_model_are_grouped_sooner_where_memory_is_slower() -> None:
    fast, slow = (CardChoices(Card(f"NVIDIA {n}", (9, 0), 132, 227 * KB)) for n in ("H200", "H100"))
    large = gpt_oss("120b")
    for rows in (32, 64, 128, 256):
        assert isinstance(fast.decode(rows, large).gate_up, StreamLaunch) == (rows <= 128)
        assert slow.decode(rows, large).gate_up == Grouped(16, 8, 4)
    for rows in decode_sizes(MAX_ROWS):
        assert slow.decode(rows, MODEL) == fast.decode(rows, MODEL)
    assert slow.is_measured
    assert fast.is_measured


def test_kernels_are_prepared_for_all_cards_of_an_architecture() -> None:
    assert len(choices_of(90, MODEL)) == 1
    tables = [choices.table for choices in choices_of(90, gpt_oss("120b"))]
    assert tables == [HOPPER, H100]
