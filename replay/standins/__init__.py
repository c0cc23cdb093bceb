# pyright: strict
"""Portable stand-ins for vendor ops whose library is not installed; the real library always wins."""

from opreplay.replay.standins.declared.catalog import library_of
from opreplay.replay.standins.declared.register import (
    canonical_name,
    implemented,
    is_reference,
    overloads_of,
    reference,
    register_namespace,
)

__all__ = [
    "canonical_name",
    "implemented",
    "is_reference",
    "library_of",
    "overloads_of",
    "reference",
    "register_namespace",
]
