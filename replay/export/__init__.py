# pyright: strict
"""Writes standalone bundles. A bundle has selected ops of a plan and one script, which replays them wherever torch is
installed.
"""

from opreplay.replay.export.bundle import Bundle, LeftOut, make_bundle
from opreplay.replay.export.files import check_target, write_bundle

__all__ = ["Bundle", "LeftOut", "check_target", "make_bundle", "write_bundle"]
