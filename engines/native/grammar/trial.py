"""A grammar is compiled for the first time in a process that can be stopped.

A grammar of a few hundred bytes can take hours to compile, all memory, or a stack deeper than
any. What has passed here is compiled again, beside the step loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final

from engines.errors import InvalidGrammar
from engines.grammar.tree import Written

if TYPE_CHECKING:
    pass

MAX_GRAMMAR_BYTES: Final = 256 * 1024**2  # as it is compiled
_MAX_AT_ONCE: Final = 2  # compilations: one of them may be slow
_TOO_LARGE: Final = "compiling it needs too much memory; simplify it"


class Trial:
    """Compiles one grammar at a time in a process that is stopped when it takes too long."""

    def __init__(self, vocab_size: int, timeout_s: float) -> None:
        self._vocab_size = vocab_size
        self._timeout_s = timeout_s
        self._process: Process | None = None

    async def start(self) -> None:
        """Start the process, so that the next grammar need not wait for it."""
        if self._process is not None and self._process.returncode is not None:
            await self.stop()  # it has died since
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "engines.native.grammar.trial_program"),
                str(self._vocab_size),
                stdin=PIPE,
                stdout=PIPE,
                stderr=DEVNULL,
            )

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.communicate()  # to the end of its pipes, so that they are closed

    async def run(self, grammar: str) -> int:
        """Compile a grammar in the process; gives the bytes of memory that it takes.

        Raises InvalidGrammar if it cannot be compiled, or not in time; BlockingIOError if the
        system starts no process or thread for it.
        """
        answer, code = await self._answer(grammar)
        if code == -signal.SIGKILL:  # by the kernel for want of memory, which may not be its fault
            answer, code = await self._answer(grammar)
        if code == errno.EAGAIN:
            raise BlockingIOError(code, "the process that compiles grammars can start no thread")
        if not answer:
            raise InvalidGrammar(_TOO_LARGE)
        reason, num_bytes = json.loads(answer)
        if reason:
            raise InvalidGrammar(reason)
        if num_bytes > MAX_GRAMMAR_BYTES:
            raise InvalidGrammar(_TOO_LARGE)
        return int(num_bytes)

    async def _answer(self, grammar: str) -> tuple[bytes, int | None]:
        """The process's answer, and its exit code if it has died without one."""
        await self.start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        answer = b""
        try:
            async with asyncio.timeout(self._timeout_s):
                process.stdin.write(json.dumps(grammar).encode() + b"\n")
                with contextlib.suppress(ConnectionError):
                    await process.stdin.drain()
                answer = await process.stdout.readline()
                if not answer:  # it has died; a signal to it now would lose how
                    await process.wait()
        except TimeoutError:
            reason = f"compiling it takes longer than {self._timeout_s:g} s; simplify it"
            raise InvalidGrammar(reason) from None
        finally:
            if not answer:
                await self.stop()
        return answer, process.returncode


class Trials:
    """A few trials at once, of which one process stays ready between two grammars."""

    def __init__(self, vocab_size: int, timeout_s: float) -> None:
        self._options = vocab_size, timeout_s
        self._free = [Trial(vocab_size, timeout_s)]
        self._places = asyncio.Semaphore(_MAX_AT_ONCE)  # the next is the longest waiting

    async def start(self) -> None:
        if self._free:
            await self._free[0].start()

    async def stop(self) -> None:
        """End the processes that no task waits for; the others end with the tasks that wait for
        them."""
        for trial in self._free:
            await trial.stop()

    async def run(self, grammar: str) -> int:
        """The bytes of memory of the compiled grammar; raises InvalidGrammar as Trial.run does."""
        async with self._places:
            trial = self._free.pop() if self._free else Trial(*self._options)
            try:
                return await trial.run(grammar)
            finally:
                if self._free:
                    await trial.stop()
                else:
                    self._free.append(trial)


async def named(
    error: InvalidGrammar,
    parts: Iterable[Written],
    attempt: Callable[[Written], Awaitable[None]],
    timeout_s: float,
) -> InvalidGrammar:
    """The error under the name of the part that it is about, if one is at fault alone."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            for part in parts:
                try:
                    await attempt(part)
                except InvalidGrammar as alone:
                    label = f"{part.label} cannot be enforced: " if part.label else ""
                    return InvalidGrammar(f"{label}{alone}")
    return error
