# pyright: strict
"""Check for torch: the minimum version, and the error if torch is missing.

Commands that only read traces work without torch.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

from opreplay.traces.errors import EnvironmentRefused

TORCH_AT_LEAST = (2, 4)
INSTALL_TORCH = f"pip install 'torch>={'.'.join(map(str, TORCH_AT_LEAST))}'"


def require_torch() -> None:
    """Raise EnvironmentRefused if torch is not installed.

    The error contains the command that installs torch. Does not import torch.
    """
    if "torch" not in sys.modules and find_spec("torch") is None:
        raise EnvironmentRefused(
            "this needs torch, which is not installed",
            hint=f"{INSTALL_TORCH}, or the build for your device: https://pytorch.org/get-started/locally. "
            "inspect, timeline, compare, show and trim work without torch.",
        )


def refuse_unloadable(error: ImportError | OSError) -> None:
    """Raise EnvironmentRefused if an import error comes from torch.

    torch is then not installed, or cannot be loaded here.
    """
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        require_torch()
    if "torch" in sys.modules or (spec := find_spec("torch")) is None or spec.origin is None:
        return
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == spec.origin:
            raise EnvironmentRefused(
                f"torch is installed, but cannot be imported: {error}",
                hint="Install the build for this machine: https://pytorch.org/get-started/locally.",
            ) from error
        frame = frame.tb_next
