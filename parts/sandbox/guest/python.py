"""The tool `python`: runs code, keeps its names, and shows what a notebook shows."""

from __future__ import annotations

import ast
import linecache
import traceback
from functools import partial
from typing import Any

from parts.sandbox.guest.frame import serve


def run(names: dict[str, Any], code: str) -> None:
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
    serve(partial(run, {"__name__": "__main__"}))


if __name__ == "__main__":
    main()
