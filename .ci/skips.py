"""Prints the skipped tests of pytest's JUnit reports, and fails if CI could have run one of them."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
MACHINE = (
    r"no CUDA device on this machine",
    r"another device draws other numbers",  # a CPU's random numbers, on a machine with a GPU
    r"no (bash|chromium|fish|groff|zsh) on this machine",
    r"one processor has no threads to spare",
    r"test_event_replay\.py is not beside the checkout",  # TraceLens's own file, which no package holds
)
"""Reasons that lie in the machine. What pip can install is not among them: `make test` has to install it."""
NO_TRITON = r"Triton is not installed here"
"""Accepted on Python 3.10, for which Triton has no wheel."""
NO_SHARED = r"public data|beside the repository|does not ship with the repository|needs \.\./shared"
"""Accepted where `../shared`, a folder of public data, does not exist."""


def skipped(report: str) -> list[str]:
    """Return `TEST: REASON` for each skipped test of a report."""
    found = []
    for case in ElementTree.fromstring(report).iter("testcase"):
        test = "::".join(part for part in (case.get("classname"), case.get("name")) if part)
        for skip in case.iter("skipped"):
            if skip.get("type") == "pytest.xfail":
                continue
            reason = skip.get("message", "")
            if reason == "collection skipped":  # of a whole file: the text is (file, line, reason)
                reason = ast.literal_eval(skip.text or "")[2].removeprefix("Skipped: ")
            found.append(f"{test}: {reason}")
    return found


def refused(tests: list[str], *, shared: bool, python: tuple[int, ...]) -> list[str]:
    """Return those of `tests` (see `skipped`) whose reason CI does not accept. `shared`: `../shared` exists."""
    accepted = [*MACHINE, *([] if shared else [NO_SHARED]), *([NO_TRITON] if python < (3, 11) else [])]
    return [test for test in tests if not any(re.search(reason, test) for reason in accepted)]


def main() -> None:
    """Exit with a message if a test of the reports named on the command line had to run."""
    tests = [test for name in sys.argv[1:] for test in skipped(Path(name).read_text(encoding="utf-8"))]
    print(f"tests skipped: {len(tests)}", *tests, sep="\n  ")
    wrong = refused(tests, shared=(ROOT.parent / "shared").is_dir(), python=sys.version_info)
    if wrong:
        sys.exit("\n  ".join(["CI must run these tests; .ci/skips.py lists the reasons it accepts:", *wrong]))


if __name__ == "__main__":
    main()
