"""A Python interpreter into which tests/readme/run.py pastes, as a notebook, with `await` at the top level.

Reads names of files, a line each, and runs them one after another with one set of names. Writes to file descriptor
argv[1] "LINE error" for the one that ends a file, and "end" after each file. Tracebacks name the README argv[2].
"""

from __future__ import annotations

import ast
import asyncio
import os
import sys
import traceback
from pathlib import Path
from typing import Any


def line_of(error: BaseException, readme: str) -> int:
    if isinstance(error, SyntaxError):
        return error.lineno or 0
    lines = [frame.lineno or 0 for frame in traceback.extract_tb(error.__traceback__) if frame.filename == readme]
    return lines[-1] if lines else 0


def main() -> None:
    answers, readme = os.fdopen(int(sys.argv[1]), "w", buffering=1), sys.argv[2]
    names: dict[str, Any] = {"__name__": "__main__"}
    loop = asyncio.new_event_loop()
    for line in sys.stdin:
        try:
            code = compile(Path(line.strip()).read_text(), readme, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            result = eval(code, names)
            if asyncio.iscoroutine(result):
                loop.run_until_complete(result)
        except BaseException as error:
            traceback.print_exc()
            first = (str(error).splitlines() or [""])[0]
            print(line_of(error, readme), f"{type(error).__name__}: {first}", file=answers)
        print("end", file=answers)


main()
