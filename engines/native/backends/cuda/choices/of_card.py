"""The kernel variants that run on a card: its architecture's table, for its number of SMs."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

import torch

from engines.native.backends.cuda.card import KB, Card
from engines.native.backends.cuda.choices.hopper import H100, HOPPER
from engines.native.backends.cuda.choices.untuned import ADA, AMPERE, BLACKWELL, BLACKWELL_RTX
from engines.native.backends.cuda.choices.variants import (
    Choices,
    Grouped,
    LongAttention,
    PrefillChoices,
    Table,
)
from engines.native.backends.cuda.kernels.launch import IS_INTERPRETED
from engines.native.config import ModelConfig

MAX_ROWS: Final = max(HOPPER.decode)  # of a decode step; every table has the same buckets
_LARGE_SHARED: Final = 160 * KB

log = logging.getLogger(__name__)


def table_for(card: Card) -> Table:
    """The table of the card's architecture; of one that is not known, one that fits."""
    match card.capability:
        case (9, _):
            return HOPPER if card.name.startswith(HOPPER.measured_on) else H100
        case (8, _):
            return AMPERE if card.shared_bytes >= _LARGE_SHARED else ADA
        case _:
            return BLACKWELL if card.shared_bytes >= _LARGE_SHARED else BLACKWELL_RTX


class CardChoices:
    """The kernel variants for every size of step on one card."""

    def __init__(self, card: Card, table: Table | None = None) -> None:
        """`table`: measured on this card; default: the one of its architecture."""
        self.card, self.table = card, table or table_for(card)

    @classmethod
    def of(cls, device: torch.device) -> CardChoices:
        return cls(Card.of(device))

    @property
    def is_measured(self) -> bool:
        return any(self.card.name.startswith(name) for name in self.table.measured_on)

    def tell(self) -> None:
        """Log where the variants come from if they were not measured here."""
        if not self.is_measured:
            log.info(
                "%s: kernel choices are not tuned for this GPU; `harmonium build-engine --tune` "
                "measures them",
                self.card.name,
            )

    def decode(self, rows: int, model: ModelConfig, is_packed: bool = True) -> Choices:
        """The variants of the smallest bucket that holds `rows`.

        Experts that are not packed are not streamed: they go through the grouped products at any
        number of rows. None of that is tuned.
        """
        table = self.table.of_model(model).decode
        bucket = min(size for size in table if size >= rows)
        choices = table[bucket if is_packed else max(bucket, 8)]
        if not is_packed:
            choices = replace(choices, gate_up=Grouped(16, 8, 4), down=Grouped(16, 4, 4))
        return replace(choices, splits=self._splits(choices.splits))

    def prefill(self, tokens: int, model: ModelConfig) -> PrefillChoices:
        tokens_an_expert = tokens * model.num_experts_per_tok // model.num_local_experts
        table = self.table.prefill
        choices = table[max(n for n in table if n <= tokens_an_expert)]
        return choices._replace(long_attention=self.long_attention(model))

    def long_attention(self, model: ModelConfig) -> LongAttention | None:
        """The variant of the attention of deep chunks, if it is another one."""
        group = model.num_attention_heads // model.num_key_value_heads
        is_taken = model.head_dim == 64 and 64 % group == 0 and not IS_INTERPRETED.value
        return self.table.long_attention if is_taken else None

    def without_long_attention(self) -> CardChoices:
        """The same without a variant of its own for deep chunks."""
        return CardChoices(self.card, replace(self.table, long_attention=None))

    def _splits(self, splits: int) -> int:
        """Parts of a context, for this number of SMs: half as many on half of them."""
        halvings = _halvings(self.table.num_sms, self.card.num_sms)
        return max(splits >> halvings, 1)


def _halvings(num: int, fewer: int) -> int:
    """How often `num` is halved to come to at most 1.5 times `fewer`."""
    halvings = 0
    while num > 1.5 * fewer:
        num, halvings = num // 2, halvings + 1
    return halvings
