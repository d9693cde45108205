"""The speculation that tests ask of the native engine: none where the part drafts was removed."""

from __future__ import annotations

from typing import Final

from engines.native.config import Speculation
from engines.parts import folders

NGRAM: Final[Speculation] = "ngram" if "drafts" in folders() else "none"
