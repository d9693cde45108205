"""What tests of the recipe need of the product's tests."""

from __future__ import annotations

from tests.conftest import nano_cache, nano_checkpoint, run_folder, vocabulary_path

__all__ = ["nano_cache", "nano_checkpoint", "run_folder", "vocabulary_path"]
