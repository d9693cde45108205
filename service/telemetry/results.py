"""Whose failure the end of a request is: what the availability objective counts."""

from __future__ import annotations

from typing import Final, Literal

from service.request import RequestContext

Result = Literal["ok", "error", "excluded"]

# Ends of requests that another pod or a faster reader would not have seen.
_NOT_OURS: Final = frozenset({"not_ready", "engine_draining", "slow_reader"})


def result_of(context: RequestContext, status: int) -> Result:
    """`ok`, `error` for a failure of the server, `excluded` for all other ends.

    Read when the last byte has gone: a stream that fails has the status 200. Excluded are the
    faults of a request, clients that left, deadlines that the caller set, and a server that has
    not started or stops.
    """
    notes = context.notes
    if notes.error_code is not None:
        status = notes.error_status
    if status >= 500:
        is_callers = notes.error_code == "deadline_exceeded" and (
            context.deadline is not None and context.deadline.is_callers
        )
        return "excluded" if is_callers or notes.error_code in _NOT_OURS else "error"
    has_left = notes.generation is not None and notes.generation.outcome == "abort"
    return "ok" if 200 <= status < 400 and not has_left else "excluded"
