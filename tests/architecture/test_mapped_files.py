"""A file is mapped only where its blocks are reserved: else a full disk is a SIGBUS."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("service", "auth", "engines", "profiles", "parts")
MAPPING = re.compile(r"^import mmap|^from mmap|memmap\(|mmap_mode|shared_memory import", re.M)
# Each with what makes it safe.
KNOWN = {
    "engines/native/backends/cuda/memory/pinned.py": "no file: anonymous memory",
    "engines/native/mapped_tensor.py": "reads a whole file, and writes to a private copy",
    "engines/shared_routes.py": "given what SharedFiles made, which reserves",
    "service/admission/shared_counts.py": "made by SharedFiles, which reserves",
    "service/run/accept.py": "made by SharedFiles, which reserves",
    "service/shared_files.py": "maps what it made, and reserves",
    "service/telemetry/shared.py": "made by SharedFiles, and reserves what it grows by",
}


def test_no_other_module_maps_files() -> None:
    paths = (path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py"))
    found = {str(path.relative_to(ROOT)) for path in paths if MAPPING.search(path.read_text())}
    assert found == {*KNOWN}, (
        "reserve the blocks as service/shared_files.py does, and name the module here"
    )
