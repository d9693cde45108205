"""A public trace of requests, for as many GPUs as wanted.

The file is `FAST25-release/traces/conversation_trace.jsonl` of github.com/kvcache-ai/Mooncake, at
revision 3b5a594133958449a1feaf1c9e0fc1b553e34a28: an hour of conversations (Qin et al., "Mooncake",
FAST 2025; Apache-2.0). Each line has a time, the lengths of prompt and answer, and an id for each
512 tokens of the prompt: equal ids are equal beginnings.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SHA256: Final = "b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df"
BLOCK: Final = 512  # tokens of a block's id
_TICK_S: Final = 3.0  # the trace's times are multiples of it
_IDS: Final = 1 << 32  # more than a trace has


@dataclass(frozen=True, slots=True)
class Line:
    """One request of the trace."""

    at_s: float
    prompt: int  # tokens
    answer: int
    blocks: tuple[int, ...]  # whole ones

    @property
    def conversation(self) -> int:
        """What all turns of one share: all conversations begin with the same block."""
        return self.blocks[1] if len(self.blocks) > 1 else -1


@dataclass(eq=False, slots=True)
class Request:
    """One request of the simulation, and what became of it; times in seconds."""

    at_s: float
    prompt: int
    answer: int
    blocks: tuple[int, ...]
    num_cached: int = 0
    first_s: float = 0.0  # when its first token came
    last_s: float = 0.0

    @property
    def ttft_s(self) -> float:
        return self.first_s - self.at_s

    @property
    def s_per_token(self) -> float:
        """Of the tokens after the first."""
        return (self.last_s - self.first_s) / max(self.answer - 1, 1)


def read(path: Path) -> list[Line]:
    """The requests of a trace, each at some time in the 3 s that begin with the one it gives."""
    chance, lines = random.Random(0), []
    for text in path.read_text(encoding="utf-8").splitlines():
        found = json.loads(text)
        prompt = found["input_length"]
        blocks = tuple(found["hash_ids"][: prompt // BLOCK])
        at_s = found["timestamp"] / 1000 + chance.uniform(0, _TICK_S)
        lines.append(Line(at_s, prompt, max(found["output_length"], 1), blocks))
    return sorted(lines, key=lambda line: line.at_s)


def traffic(lines: Sequence[Line], copies: int, share: float, seconds: float) -> list[Request]:
    """So many seconds of traffic, as of so many services like the trace's.

    Each has its own users: blocks are shared within a copy, but for the first block, the system
    prompt, which all have. A copy begins at a time of its own and has a share of the trace's
    conversations.
    """
    found = [
        request for number in range(copies) for request in _copy(lines, number, share, seconds)
    ]
    return sorted(found, key=lambda request: request.at_s)


def _copy(lines: Sequence[Line], number: int, share: float, seconds: float) -> Iterator[Request]:
    chance = random.Random(number)
    all_s = lines[-1].at_s
    begin_s = chance.uniform(0, max(all_s - seconds, 0.0))
    kept: dict[int, bool] = {}
    first = lines[0].blocks[0]
    for line in lines:
        if not begin_s <= line.at_s < begin_s + seconds:
            continue
        conversation = line.conversation
        is_kept = conversation >= 0 and kept.get(conversation)
        if is_kept is None or conversation < 0:
            is_kept = kept[conversation] = chance.random() < share
        if is_kept:
            blocks = tuple(b if b == first else b + (number + 1) * _IDS for b in line.blocks)
            yield Request(line.at_s - begin_s, line.prompt, line.answer, blocks)
