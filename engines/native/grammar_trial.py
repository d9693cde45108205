"""A process in which a grammar is compiled for the first time.

A grammar of a few hundred bytes can take hours to compile, all memory, or a stack deeper than
any. Only a process can be stopped; what has passed here is compiled again, beside the step loop.
It reads a grammar a line, as a JSON string, and answers each with why it is refused, or "".
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import sys
import threading
from asyncio.subprocess import DEVNULL, PIPE, Process
from typing import TYPE_CHECKING, Final

from engines.errors import InvalidGrammar
from engines.native.grammar_vocabulary import tokenizer_of

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_MEMORY: Final = 2 * 1024**3  # of address space
STACK: Final = 64 * 1024**2  # a chain of references goes as deep as it is long
_MAX_LINE: Final = 16 * 1024**2
_NICENESS: Final = 5  # the step loop goes first where cores are few


def compiled(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """Compile; raises InvalidGrammar with the library's reason."""
    import llguidance

    limits = llguidance.LLParserLimits(
        max_items_in_row=5_000,  # an object of 1,000 optional properties needs 4,000
        step_lexer_fuel=50_000,
        max_lexer_states=50_000,  # of 1 to 2 kB
        verbose_errors=False,
    )
    matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    if matcher.is_error():
        raise InvalidGrammar(readable(matcher.get_error()))
    return matcher


def readable(error: str) -> str:
    """The library's words in one line, without the piece of grammar that it draws."""
    lines = [line.strip() for line in error.splitlines() if "|" not in line[:7]]
    words = " ".join(line for line in lines if line and line.strip("^") and line[0] != "<")
    return words[:500] or "the grammar is too complex"


class Trial:
    """Compiles one grammar at a time in a process that is stopped when it takes too long."""

    def __init__(self, vocab_size: int, timeout_s: float) -> None:
        self._vocab_size = vocab_size
        self._timeout_s = timeout_s
        self._process: Process | None = None

    async def start(self) -> None:
        """Have the process ready."""
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "engines.native.grammar_trial"),
                str(self._vocab_size),
                stdin=PIPE,
                stdout=PIPE,
                stderr=DEVNULL,
                limit=_MAX_LINE,
            )

    async def stop(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.communicate()  # to the end of its pipes, so that they are closed

    async def run(self, grammar: str) -> None:
        """Return if the grammar compiles; raises InvalidGrammar if not, or not in time."""
        await self.start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        answer = b""
        try:
            async with asyncio.timeout(self._timeout_s):
                process.stdin.write(json.dumps(grammar).encode() + b"\n")
                await process.stdin.drain()
                answer = await process.stdout.readline()
        except TimeoutError:
            reason = f"compiling it takes longer than {self._timeout_s:g} s; simplify it"
            raise InvalidGrammar(reason) from None
        except ConnectionError:
            pass  # it has died, as when it answers nothing
        finally:
            if not answer:
                await self.stop()
        if not answer:
            raise InvalidGrammar("compiling it needs too much memory; simplify it")
        if reason := json.loads(answer):
            raise InvalidGrammar(reason)


def main() -> None:
    """Answer until there is no more to read."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with its parent
    os.nice(_NICENESS)
    with contextlib.suppress(ValueError, OSError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    threading.stack_size(STACK)
    thread = threading.Thread(target=_answer, args=(int(sys.argv[1]),))
    thread.start()
    thread.join()


def _answer(vocab_size: int) -> None:
    letters = [bytes([byte]) for byte in range(255)]
    tokenizer = tokenizer_of(letters + [b""] * (vocab_size - len(letters)))
    for line in sys.stdin:
        try:
            compiled(tokenizer, json.loads(line)).compute_bitmask()
            reason = ""
        except InvalidGrammar as error:
            reason = str(error)
        print(json.dumps(reason), flush=True)


if __name__ == "__main__":
    main()
