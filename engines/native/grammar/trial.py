"""A process in which a grammar is compiled for the first time, and which grammars need none.

A grammar of a few hundred bytes can take hours to compile, all memory, or a stack deeper than
any. Only a process can be stopped; what has passed here is compiled again, beside the step loop.
It reads a grammar a line, as a JSON string, and answers each with why it is refused, or "", and
with the bytes of memory that the compiled grammar takes.

No list of what is dangerous is whole, but a list of what is not can be: schemas of ordinary
models, without patterns, parts to be merged, long repetitions and long numbers (1e298 among an
integer's values overflows a stack). The library takes time in proportion to their text, and to the
square of the properties of one object: 0.4 s for the 2,000 that are let through, beside the step
loop and without the interpreter.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import json
import os
import resource
import signal
import sys
import threading
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from engines.errors import InvalidGrammar
from engines.grammar.tree import JsonSchema, Written
from engines.native.grammar.vocabulary import tokenizer_of

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_MEMORY: Final = 1024**3  # of address space
MAX_GRAMMAR_BYTES: Final = 256 * 1024**2  # as it is compiled
STACK: Final = 64 * 1024**2  # a chain of references goes as deep as it is long
_MAX_AT_ONCE: Final = 2  # compilations: one of them may be slow
_TOO_LARGE: Final = "compiling it needs too much memory; simplify it"
_NICENESS: Final = 5  # the step loop goes first where cores are few

_LIMITS: Final[dict[str, Any]] = {
    "max_items_in_row": 5_000,  # an object of 1,000 optional properties needs 4,000
    "step_lexer_fuel": 50_000,
    "max_lexer_states": 50_000,  # of 1 to 2 kB
}

MAX_SCHEMAS: Final = 2_000  # schemas within schemas, of all parts together
MAX_CHARS: Final = 200_000
MAX_ITEMS: Final = 100
MAX_LENGTH: Final = 10_000

_NAMES: Final = ("type", "format", "required")
_NUMBERS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_BOUNDED: Final = {
    **dict.fromkeys(("minItems", "maxItems"), MAX_ITEMS),
    **dict.fromkeys(("minLength", "maxLength"), MAX_LENGTH),
}
_MAX_INTEGER: Final = 2**31
_MAX_DIGITS: Final = 10  # of a number with a point


def compiled(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """Compile a grammar; raises InvalidGrammar with the library's reason."""
    import llguidance

    try:
        limits = llguidance.LLParserLimits(**_LIMITS, verbose_errors=False)
    except TypeError:  # 0.7, which TensorRT-LLM pins, is never verbose
        limits = llguidance.LLParserLimits(**_LIMITS)
    matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    if matcher.is_error():
        raise InvalidGrammar(readable(matcher.get_error()))
    return matcher


def readable(error: str) -> str:
    """The library's error in one line, without the piece of grammar that it draws."""
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
        """Start the process, so that the next grammar need not wait for it."""
        if self._process is not None and self._process.returncode is not None:
            await self.stop()  # it has died since
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "engines.native.grammar.trial"),
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


def main() -> None:
    """Compile each grammar of stdin and answer on stdout, to the end of stdin."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with its parent
    os.nice(_NICENESS)
    with contextlib.suppress(ValueError, OSError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    threading.stack_size(STACK)
    thread = threading.Thread(target=_answer, args=(int(sys.argv[1]),))
    try:
        thread.start()
    except RuntimeError:
        sys.exit(errno.EAGAIN)
    thread.join()


def _answer(vocab_size: int) -> None:
    letters = [bytes([byte]) for byte in range(255)]
    tokenizer = tokenizer_of(letters + [b""] * (vocab_size - len(letters)))
    for line in sys.stdin:
        before, reason = _resident_bytes(), ""
        try:
            matcher = compiled(tokenizer, json.loads(line))
            matcher.compute_bitmask()
            num_bytes = _resident_bytes() - before
            del matcher
        except InvalidGrammar as error:
            reason, num_bytes = str(error), 0
        print(json.dumps([reason, num_bytes]), flush=True)


def _resident_bytes() -> int:
    """Resident memory of this process without freed memory; 0 if the system does not report it."""
    with contextlib.suppress(AttributeError, OSError):  # glibc's alone
        ctypes.CDLL(None).malloc_trim(0)
    try:
        num_pages = int(Path("/proc/self/statm").read_bytes().split()[1])
    except OSError:
        return 0
    return num_pages * resource.getpagesize()


if __name__ == "__main__":
    main()


def is_harmless(parts: list[Written]) -> bool:
    """Whether all that a client may have written is of the ordinary kind."""
    schemas = [part.schema for part in parts if isinstance(part, JsonSchema)]
    if len(schemas) < len(parts) or sum(map(len, schemas)) > MAX_CHARS:
        return False
    waiting: list[Any] = [json.loads(schema) for schema in schemas]
    num_schemas = 0
    while waiting:
        schema = waiting.pop()
        num_schemas += 1
        if num_schemas > MAX_SCHEMAS or not isinstance(schema, dict | bool):
            return False
        if isinstance(schema, dict):
            inner = _inner(schema)
            if inner is None:
                return False
            waiting += inner
    return True


def _inner(schema: dict[str, Any]) -> list[Any] | None:
    """The schemas within this one; None where a keyword or its value is not known as harmless."""
    inner: list[Any] = []
    own = schema.keys() - {"$defs"}
    for key, value in schema.items():
        if key in _NAMES:
            continue
        if key in _BOUNDED:
            if not isinstance(value, int) or value > _BOUNDED[key]:
                return None
        elif key in _NUMBERS or key in ("const", "enum"):
            if not all(map(_is_short, value if isinstance(value, list) else (value,))):
                return None
        elif key in ("properties", "$defs") and isinstance(value, dict):
            inner += value.values()
        elif key == "items" or (key == "additionalProperties" and _is_map(schema)):
            inner.append(value)
        elif key == "anyOf" and isinstance(value, list) and own == {"anyOf"}:
            inner += value
        elif not (key == "$ref" and own == {"$ref"}):
            return None
    return inner


def _is_short(value: Any) -> bool:
    """A text, or a number that is not written at length."""
    if isinstance(value, float):
        return len(str(value)) <= _MAX_DIGITS and "e" not in str(value)
    if isinstance(value, int):
        return abs(value) <= _MAX_INTEGER
    return value is None or isinstance(value, str)


def _is_map(schema: dict[str, Any]) -> bool:
    """Whether an object has names that must differ from its properties', which is costly."""
    return schema["additionalProperties"] is False or not schema.keys() & {"properties", "required"}
