"""Engines hand K/V over where their weights are equal, however they keep them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from engines.native.checkpoint_digest import checkpoint_digest
from profiles.checkpoints.packed import PACKED, delete_shards


def write(folder: Path, value: float = 0.5) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    save_file({"a": np.full(5000, value)}, folder / "model-1.safetensors")
    save_file({"b": np.ones(5)}, folder / "model-2.safetensors")
    return folder


def test_packed_weights_are_known_as_the_checkpoint_that_they_were_packed_from(
    tmp_path: Path,
) -> None:
    whole, packed = write(tmp_path / "whole"), write(tmp_path / "packed")
    expected = checkpoint_digest(whole)
    for _ in range(2):  # also when there is nothing left to delete
        delete_shards(packed, checkpoint_digest(packed))
        assert not [*packed.glob("*.safetensors")]
        assert checkpoint_digest(packed) == expected


def test_what_lies_beside_packed_weights_counts_before_what_was_noted(tmp_path: Path) -> None:
    """Shards that were put there later are of another checkpoint, as the engine takes them."""
    folder, other = write(tmp_path / "folder"), write(tmp_path / "other", 0.25)
    noted = checkpoint_digest(folder)
    delete_shards(folder, noted)
    for path in other.glob("*.safetensors"):
        shutil.copy(path, folder)
    assert checkpoint_digest(folder) != noted


def test_packed_weights_without_a_note_are_their_machines_own(tmp_path: Path) -> None:
    """An older release noted size and time only: two fine-tunings have the same names and sizes."""
    folder, other = write(tmp_path / "folder"), write(tmp_path / "other", 0.25)
    for time_s, each in enumerate((folder, other)):
        for path in each.glob("*.safetensors"):
            os.utime(path, (time_s, time_s))
        delete_shards(each, "")
        noted = json.loads((each / PACKED).read_text())
        (each / PACKED).write_text(json.dumps({"shards": noted["shards"]}))
    assert checkpoint_digest(folder) != checkpoint_digest(other)
