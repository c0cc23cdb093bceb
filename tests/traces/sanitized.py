"""Importing this loads the compiled reader that OPREPLAY_SANITIZED_EVENTS names in place of the installed one.

`.ci/sanitize` builds that one with sanitizers.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys

_NAME = "opreplay.traces.reading.native._events"
_loader = importlib.machinery.ExtensionFileLoader(_NAME, os.environ["OPREPLAY_SANITIZED_EVENTS"])
_spec = importlib.util.spec_from_loader(_NAME, _loader)
assert _spec is not None
_module = importlib.util.module_from_spec(_spec)
_loader.exec_module(_module)
sys.modules[_NAME] = _module
