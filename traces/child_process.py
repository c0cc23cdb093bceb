# pyright: strict
"""Build the command line of every Python process that opreplay starts.

The command keeps other folders from injecting a module. `python -c` and `python -m` search the current folder before
the standard library, and another user may have put files there. This module does not start processes itself.
"""

from __future__ import annotations

import os
import sys

_BOOTSTRAP = (
    "import sys; count = int(sys.argv[1]); sys.path[:] = sys.argv[2 : 2 + count]; "
    "from {module} import {function}; {function}(*map(int, sys.argv[2 + count :]))"
)
"""Start-up code of a child process, which replaces `sys.path` with the parent's path. Before that it imports only
`sys`, which is built in and so cannot come from another folder.
"""


def python_command(module: str, function: str, *numbers: int) -> list[str]:
    """Return the command of a Python process that imports `function` from `module` and calls it with the given
    numbers.
    """
    # Python 3.13 imports linecache before the first statement of -c.
    safe = ["-P"] if sys.version_info >= (3, 11) else []
    entries = module_path()
    bootstrap = _BOOTSTRAP.format(module=module, function=function)
    return [sys.executable, *safe, "-c", bootstrap, str(len(entries)), *entries, *map(str, numbers)]


def module_path() -> list[str]:
    """Return the folders in which a child process looks for modules: this process's `sys.path` without "" and relative
    folders.

    Relative folders are dropped because they depend on the current folder.
    """
    return [entry for entry in sys.path if os.path.isabs(entry)]
