"""The policy's verdict on every schema that torch ships, against a reviewed snapshot.

When a torch upgrade adds or changes schemas this test fails, on purpose: somebody has to decide. Run
`python tests/replay/resolve/test_policy_verdicts.py --write`, read the diff of
tests/golden/policy_verdicts.txt line by line,
and for every newly ALLOWED op ask: can it reach a file, another process, memory out of bounds or a global setting? If
so, add it to the tables of replay/resolve/policy.py and write again.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from opreplay.replay.resolve.names import policy_verdict
from opreplay.replay.resolve.policy import TORCH_NAMESPACES, Policy, refuse_name
from opreplay.replay.resolve.schema import specs_of

GOLDEN = Path(__file__).parents[2] / "golden" / "policy_verdicts.txt"


def verdicts() -> list[str]:
    """One line an op: the allowed overloads, then one line a refusal with its reason."""
    import torch

    names = {schema.name for schema in torch._C._jit_get_all_schemas() if "::" in schema.name}
    lines = []
    for name in sorted(n for n in names if n.partition("::")[0] in TORCH_NAMESPACES):
        allowed = []
        for spec in specs_of(name):
            reason = refuse_name(name, Policy()) or policy_verdict(spec)
            if reason is None:
                allowed.append(spec.overload or "(default)")
            else:
                lines.append(f"{name} {spec.overload or '(default)'}: {reason}")
        if allowed:
            lines.append(f"{name} ALLOWED {' '.join(sorted(allowed))}")
    return lines


def allowed_overloads(lines: list[str]) -> set[tuple[str, str]]:
    """(op, overload) of every ALLOWED line."""
    split = [line.split(" ") for line in lines if " ALLOWED " in line]
    return {(name, overload) for name, _, *overloads in split for overload in overloads}


@pytest.mark.slow
def test_no_schema_of_torch_is_allowed_without_a_decision() -> None:
    import torch

    header, *expected = GOLDEN.read_text(encoding="utf-8").splitlines()
    # A fresh process: other tests import parts of torch that register more.
    found = subprocess.run(
        [sys.executable, __file__, "--print"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    undecided = sorted(allowed_overloads(found) - allowed_overloads(expected))
    assert not undecided, (
        f"{len(undecided)} new ops are undecided, e.g. {undecided[:5]}; see the docstring of {__file__}"
    )
    if header == f"# torch {torch.__version__.partition('+')[0]}":
        changed = sorted(set(found) ^ set(expected))
        assert not changed, f"{len(changed)} verdicts differ, e.g. {changed[:5]}; see the docstring of {__file__}"


def test_the_snapshot_refuses_what_security_names() -> None:
    text = GOLDEN.read_text(encoding="utf-8")
    assert "aten::from_file (default): policy: argument 'filename'" in text
    assert "inductor::_reinterpret_tensor (default): policy: namespace inductor" in text
    assert "aten::save" not in text, "ops of the interpreter alone are not in the dispatcher's table"
    assert "prim::" not in text


if __name__ == "__main__":
    import torch

    lines = verdicts()
    if "--write" in sys.argv:
        GOLDEN.write_text(
            "\n".join([f"# torch {torch.__version__.partition('+')[0]}", *lines]) + "\n", encoding="utf-8"
        )
    else:
        sys.stdout.write("\n".join(lines) + "\n")
