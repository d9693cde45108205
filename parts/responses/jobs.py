"""Background responses, as jobs."""

from __future__ import annotations

from typing import Final

from parts.responses.background import KIND, ResponseJobs

JOBS: Final = {KIND: ResponseJobs}
