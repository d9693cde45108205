"""The program in the sandbox: runs code, keeps its names, and shows what a notebook shows.

It is given to Python as text (`python -I -c`), so it imports the standard library alone. A request
is a line of a mark and a number of bytes, then the code; its output ends with the mark.
"""

from __future__ import annotations

import ast
import io
import linecache
import os
import resource
import sys
import traceback
from typing import Any

MEMORY_BYTES = 512 << 20  # of a process; all together: toolbox.py
CPU_S = 120
MOST_PROCESSES = 32  # and threads; for a server of root: toolbox.py
FILE_BYTES = 64 << 20
MOST_FILES = 256
OUTPUT_BYTES = 64 << 10


class Printed(io.RawIOBase):
    """Standard output up to a bound; what comes after it is dropped, and said once."""

    def __init__(self) -> None:
        self.left = 0
        self.is_cut = False

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        shown = bytes(data)[: self.left]
        if shown:
            os.write(1, shown)
        if len(shown) < len(data) and not self.is_cut:
            self.is_cut = True
            os.write(1, b"\n[output cut]\n")
        self.left -= len(shown)
        return len(data)


def limit() -> None:
    """Bound this process and those that it starts, and let the server go first."""
    os.nice(10)
    for what, most in (
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_CPU, CPU_S),
        (resource.RLIMIT_NPROC, MOST_PROCESSES),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_NOFILE, MOST_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))


def run(code: str, names: dict[str, Any]) -> None:
    """Run code; the value of an expression in its last line is shown."""
    file = "<python>"
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    try:
        tree = ast.parse(code, file)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, file, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), file, "eval"), names)
            if value is not None:
                print(repr(value))
    except BaseException as error:  # SystemExit and KeyboardInterrupt too
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != file:
            trace = trace.tb_next
        traceback.print_exception(type(error), error, trace)


def main() -> None:
    """Answer requests until there are no more."""
    limit()
    requests = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    output = Printed()
    sys.stdout = sys.stderr = io.TextIOWrapper(output, "utf-8", "replace", write_through=True)
    names: dict[str, Any] = {"__name__": "__main__"}
    while header := requests.readline():
        mark, num_bytes = header.split()
        code = requests.read(int(num_bytes)).decode("utf-8", "replace")
        output.left, output.is_cut = OUTPUT_BYTES, False
        run(code, names)
        os.write(1, mark)


if __name__ == "__main__":
    main()
