"""What a guest loads is what is stored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engines.errors import EngineStartError
from engines.guest.checkpoint import checked_config


@pytest.mark.parametrize(
    ("stored", "precision", "is_served"),
    [
        ("mxfp4", "mxfp4", True),
        ("mxfp4", "bf16", False),
        (None, "mxfp4", False),
        (None, "bf16", True),
        ("mxfp4", None, True),
    ],
)
def test_weights_are_served_as_they_are_stored(
    tmp_path: Path, stored: str | None, precision: str | None, is_served: bool
) -> None:
    config = {"vocab_size": 9} | (
        {"quantization_config": {"quant_method": stored}} if stored else {}
    )
    (tmp_path / "config.json").write_text(json.dumps(config))
    if is_served:
        assert checked_config(tmp_path, precision, "vLLM")["vocab_size"] == 9
    else:
        with pytest.raises(
            EngineStartError, match=f"precision is '{precision}', but .*config.json"
        ):
            checked_config(tmp_path, precision, "vLLM")


def test_a_folder_without_a_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineStartError, match=r"config\.json: cannot be read"):
        checked_config(tmp_path, None, "vLLM")
