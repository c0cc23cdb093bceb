# pyright: strict
"""The command line of every Python process that opreplay starts: no folder but the parent's own can slip a module in.

`python -c` and `python -m` put the current folder before the standard library, and somebody else may have filled it.
Owns no process: who starts one says what it is connected to.
"""

from __future__ import annotations

import os
import sys

_BOOTSTRAP = (
    "import sys; count = int(sys.argv[1]); sys.path[:] = sys.argv[2 : 2 + count]; "
    "from {module} import {function}; {function}(*map(int, sys.argv[2 + count :]))"
)
"""Imports nothing but `sys`, which is built in, before the path is the parent's."""


def python_command(module: str, function: str, *numbers: int) -> list[str]:
    """What starts a Python process that imports a function, by its module's whole name, and calls it with numbers."""
    # Python 3.13 imports linecache before the first statement of -c.
    safe = ["-P"] if sys.version_info >= (3, 11) else []
    entries = module_path()
    bootstrap = _BOOTSTRAP.format(module=module, function=function)
    return [sys.executable, *safe, "-c", bootstrap, str(len(entries)), *entries, *map(str, numbers)]


def module_path() -> list[str]:
    """Where a child looks for modules: as this process does, without "" and relative folders, which mean wherever one
    stands. A folder that was put there as an absolute one stays."""
    return [entry for entry in sys.path if os.path.isabs(entry)]
