"""The seconds of a native engine: a step's, shared by the tokens that it computed."""

from __future__ import annotations

import uuid
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

from engines.base import EngineRequest
from engines.native.assemble import EnginePart
from engines.native.loop.option import Option
from engines.native.loop.sequence import Sequence as Running
from engines.native.loop.step_plan import Chunk
from parts.usage.counting.engine_time import MOST, NOBODY, PART, name_of


class EngineTime(Option):
    """The seconds of each account; on a CPU those of the process, else times its GPUs."""

    def __init__(self, num_gpus: int) -> None:
        self._num_gpus = num_gpus
        self._life = uuid.uuid4().hex[:12]
        self._total = 0.0
        self._seconds: OrderedDict[str, float] = OrderedDict()
        self._steady: Sequence[Running] = ()
        self._of_steady: Mapping[str, int] = {}  # tokens that a step has of each account

    def computed(self, seconds: float, chunks: Sequence[Chunk], steady: Sequence[Running]) -> None:
        if steady is not self._steady:
            self._steady = steady
            self._of_steady = Counter(_account(each.request) for each in steady)
        num_tokens = len(steady) + sum(chunk.num_tokens for chunk in chunks)
        of_one = seconds * self._num_gpus / num_tokens
        self._total += seconds * self._num_gpus
        self._add(self._of_steady.items(), of_one)
        self._add(((_account(c.sequence.request), c.num_tokens) for c in chunks), of_one)

    def _add(self, tokens: Iterable[tuple[str, int]], seconds: float) -> None:
        for account, num in tokens:
            # Never without the account in between: another thread may be asking.
            self._seconds[account] = self._seconds.get(account, 0.0) + num * seconds
            self._seconds.move_to_end(account)
            if len(self._seconds) > MOST:
                self._seconds.popitem(last=False)

    def counts(self) -> Mapping[str, float]:
        return {"gpu_seconds": self._total}

    def levels(self) -> Mapping[str, float]:
        # Of this life of the engine, so no counts. A copy in one step of the interpreter.
        return {name_of(self._life, name): s for name, s in self._seconds.copy().items()}


def _account(request: EngineRequest) -> str:
    account: str = request.extras.get(PART, NOBODY)
    adapter = None if account == NOBODY else request.adapter
    return account if adapter is None else f"{account}\n{adapter.name}"


class _Usage(EnginePart):
    needs_prefix_cache: ClassVar[bool] = False

    def for_spec(self, given: Mapping[str, Any]) -> Option | None:
        return EngineTime(**given)


ENGINE: Final = _Usage()
