"""What the part takes of a GPU's memory."""

from __future__ import annotations

from typing import Final

from parts.dynamo.handover.fetch import PIECE_BYTES

MEMORY: Final = 3 * PIECE_BYTES  # blocks of other engines, gathered and put in their places
