"""What the choice of kernels depends on of the card that is there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

KB: Final = 1 << 10


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU, as far as kernels are chosen by it."""

    name: str
    capability: tuple[int, int]
    num_sms: int
    shared_bytes: int  # shared memory of one program, at most

    @classmethod
    def of(cls, device: torch.device) -> Card:
        """The card of a device; Triton's interpreter counts as an H200."""
        if device.type != "cuda":
            return KNOWN[90]
        found = torch.cuda.get_device_properties(device)
        return cls(
            found.name,
            (found.major, found.minor),
            found.multi_processor_count,
            int(getattr(found, "shared_memory_per_block_optin")),  # noqa: B009 - not in the stubs
        )

    @property
    def architecture(self) -> int:
        """The compute capability as compilers write it: 90 for 9.0."""
        return 10 * self.capability[0] + self.capability[1]


KNOWN: Final = {
    card.architecture: card
    for card in (
        Card("NVIDIA A100-SXM4-80GB", (8, 0), 108, 163 * KB),
        Card("NVIDIA A10G", (8, 6), 80, 99 * KB),
        Card("NVIDIA L40S", (8, 9), 142, 99 * KB),
        Card("NVIDIA H200", (9, 0), 132, 227 * KB),
        Card("NVIDIA B200", (10, 0), 148, 227 * KB),
        Card("NVIDIA B300 SXM6 AC", (10, 3), 148, 227 * KB),
        Card("NVIDIA RTX PRO 6000 Blackwell Server Edition", (12, 0), 188, 99 * KB),
        Card("NVIDIA GB10", (12, 1), 48, 99 * KB),
    )
}
"""A card of each architecture, to compile for without it."""
