"""What a guest is given to load: the checkpoint as it is stored."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.errors import EngineStartError
from engines.native.config import read_json


def checked_config(model_dir: Path, precision: str | None, library: str) -> Mapping[str, Any]:
    """Read the checkpoint's config.json, and compare the stored precision with the one asked for.

    Guests take the weights as they are, and config.json's word for what they are: raises
    EngineStartError where the two differ, as for a file that is not there or is not JSON. Profiles
    have the precision that the shards' headers have.
    """
    path = model_dir / "config.json"
    config = read_json(path)
    stored = (config.get("quantization_config") or {}).get("quant_method")
    if precision is not None and (precision == "mxfp4") != (stored == "mxfp4"):
        raise EngineStartError(
            f"precision is {precision!r}, but {path} says that the weights are "
            f"{'not quantized' if stored is None else stored}; {library} goes by that: correct its "
            "quantization_config if the weights are otherwise, or choose another profile"
        )
    return config
