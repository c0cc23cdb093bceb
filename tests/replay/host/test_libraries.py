"""The one table of libraries, and what is read off it."""

from __future__ import annotations

from collections import Counter

from opreplay.replay.host.libraries import LIBRARIES, LIBRARY_OF, MODULE_OF
from opreplay.replay.resolve.policy import Policy


def test_a_namespace_belongs_to_one_library() -> None:
    rows = Counter(namespace for library in LIBRARIES for namespace in library.namespaces)
    assert max(rows.values()) == 1
    assert len({library.name for library in LIBRARIES}) == len(LIBRARIES)


def test_a_library_that_doctor_looks_for_has_an_import_name() -> None:
    assert all(library.name.isidentifier() for library in LIBRARIES if library.common)


def test_modules_lie_in_their_library() -> None:
    """Importing for a namespace runs the library that is named when it is missing, and no other."""
    elsewhere = {name: module for name, module in MODULE_OF.items() if module.partition(".")[0] != LIBRARY_OF[name]}
    assert elsewhere == {"flash_attn_3": "flash_attn_interface"}


def test_a_known_library_may_still_not_be_imported() -> None:
    barred = LIBRARY_OF.keys() - MODULE_OF.keys()
    assert barred == {"_punica_C", "sglang_profiler", "te_softmax", "fb"}
    assert all(Policy().modules_for(namespace) == () for namespace in barred)
