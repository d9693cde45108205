"""The errors an engine may raise.

EngineError
├── EngineStartError      the engine cannot start: bad checkpoint, missing library, no memory
├── EngineDead            the engine process is gone or does not answer
├── EngineDraining        the engine refuses new requests because it is stopping
├── NotTaken              the request never came to the engine, and another may run it
├── Refused               the engine takes no more now
│   ├── QueueFull         too many requests wait already
│   └── Overloaded        the first token would come later than the request may wait
├── RequestQuarantined    the engine died twice under this request
├── InvalidRequest        this request can never be served as it is
│   ├── InvalidGrammar    the grammar cannot be compiled
│   └── PromptTooLong     the prompt does not fit the context
├── SlowReader            too much of the answer waited for a client that reads too slowly
├── Paused                the reader is behind: the guard continues the request later
└── RequestFailed         the engine failed while it served this request
    └── OutOfMemory       there was no memory left for this request's step
"""

from __future__ import annotations


class EngineError(Exception):
    """The root of all engine errors; `code` names the class on the wire."""

    code = "engine_error"
    retry_s: int = 0  # after how many seconds to try again; 0: it does not say


class EngineStartError(EngineError):
    """The engine cannot start; the message names the file, tensor or library."""

    code = "engine_start_error"


class EngineDead(EngineError):
    """The engine process is gone or does not answer."""

    code = "engine_dead"


class EngineDraining(EngineError):
    """The engine is stopping and takes no new requests."""

    code = "engine_draining"


class NotTaken(EngineError):
    """The request never came to this engine of several; another runs it."""

    code = "not_taken"


class Refused(EngineError):
    """The engine takes no more now; `retry_s`: after how many seconds it should again."""

    code = "refused"

    def __init__(self, *args: object, retry_s: int = 1) -> None:
        super().__init__(*args)
        self.retry_s = retry_s


class QueueFull(Refused):
    """Too many requests wait already; try again later."""

    code = "queue_full"


class Overloaded(Refused):
    """The request would wait longer than it may; try again later."""

    code = "overloaded"


class RequestQuarantined(EngineError):
    """The engine died twice under this request, which is refused for a while."""

    code = "request_quarantined"


class InvalidRequest(EngineError):
    """This request can never be served as it is."""

    code = "invalid_request"


class PromptTooLong(InvalidRequest):
    """The prompt leaves no room for an answer, or needs more KV blocks than there are."""

    code = "prompt_too_long"


class InvalidGrammar(InvalidRequest):
    """The grammar cannot be compiled; the message has the reason."""

    code = "invalid_grammar"


class SlowReader(EngineError):
    """Too much of the answer waited for a client that reads too slowly."""

    code = "slow_reader"


class Paused(EngineError):
    """The reader is behind, so the engine stopped; all tokens until then have been read."""

    code = "paused"


class RequestFailed(EngineError):
    """The engine failed while it served this request; others are unaffected."""

    code = "request_failed"


class OutOfMemory(RequestFailed):
    """No memory was left for this request's step; others continue."""

    code = "out_of_memory"
