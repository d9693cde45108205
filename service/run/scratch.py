"""Where a start writes what it can make again when the cache is read-only."""

from __future__ import annotations

import atexit
import logging
import os
from functools import cache
from pathlib import Path

from engines.live_folder import LiveFolder

log = logging.getLogger(__name__)


@cache
def writable(folder: Path) -> Path:
    """Return the cache folder, or a temporary one of this process where that is read-only.

    A folder that is not there is returned as it is: the author of to it says what is wrong.
    """
    if not folder.is_dir() or os.access(folder, os.W_OK):
        return folder
    log.warning(
        "%s is read-only: nothing is downloaded. Compiled kernels, stored "
        "responses and the vocabulary are made again at each start.",
        folder,
    )
    temporary = LiveFolder()
    temporary.make()
    atexit.register(temporary.remove)
    return temporary.path
