"""Whose the seconds of an engine are: a step's, shared by the tokens that it computed.

The engine knows accounts by names that its clients made up (EngineRequest.extras). It tells each
one's seconds so far with its counts, under a name that no other life of an engine uses.
"""

from __future__ import annotations

import uuid
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from engines.base import EngineRequest, EngineStats
from engines.native.loop.option import Option
from engines.native.loop.sequence import Sequence as Running
from engines.native.loop.step_plan import Chunk

PART: Final = "usage"  # its key in EngineSpec.parts and EngineRequest.extras
NOBODY: Final = ""  # asks on its own account: a probe, a comparison
PREFIX: Final = "usage_s"
_MOST: Final = 4096  # accounts that are kept, the last used


class EngineTime(Option):
    """The seconds of each account; on a CPU those of the process, else times its GPUs."""

    def __init__(self, num_gpus: int) -> None:
        self._num_gpus = num_gpus
        self._life = uuid.uuid4().hex[:12]
        self._seconds: OrderedDict[str, float] = OrderedDict()
        self._steady: Sequence[Running] = ()
        self._of_steady: Mapping[str, int] = {}  # tokens that a step has of each account

    def computed(self, seconds: float, chunks: Sequence[Chunk], steady: Sequence[Running]) -> None:
        if steady is not self._steady:
            self._steady = steady
            self._of_steady = Counter(_account(each.request) for each in steady)
        num_tokens = len(steady) + sum(chunk.num_tokens for chunk in chunks)
        of_one = seconds * self._num_gpus / num_tokens
        self._add(self._of_steady.items(), of_one)
        self._add(((_account(c.sequence.request), c.num_tokens) for c in chunks), of_one)

    def _add(self, tokens: Iterable[tuple[str, int]], seconds: float) -> None:
        for account, num in tokens:
            self._seconds[account] = self._seconds.pop(account, 0.0) + num * seconds
            if len(self._seconds) > _MOST:
                self._seconds.popitem(last=False)

    def counts(self) -> Mapping[str, float]:
        # A copy in one step of the interpreter: another thread asks.
        return {f"{PREFIX}/{self._life}/{name}": s for name, s in self._seconds.copy().items()}


def _account(request: EngineRequest) -> str:
    account: str = request.extras.get(PART, NOBODY)
    return account


class EngineSeconds:
    """What the engines of a server have told of the accounts of one client."""

    def __init__(self, client: str) -> None:
        """`client`: a name that no other has, without a slash."""
        self._client = client
        self._told: dict[str, float] = {}

    def account(self, name: str) -> str:
        """What a request of the client names for the engine."""
        return f"{self._client}/{name}"

    def new(self, stats: EngineStats) -> Iterator[tuple[str, int]]:
        """The names that have used whole milliseconds since they were last told, and how many."""
        for key, seconds in stats.extras.items():
            prefix, _, rest = key.partition("/")
            client, _, name = rest.partition("/")[2].partition("/")
            if prefix == PREFIX and client == self._client:
                told = self._told.get(key, 0.0)
                if num_ms := int((seconds - told) * 1000):
                    self._told[key] = told + num_ms / 1000
                    yield name, num_ms
        if len(self._told) > 2 * _MOST:  # those of engines that are gone
            self._told = {key: s for key, s in self._told.items() if key in stats.extras}
