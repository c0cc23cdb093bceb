"""Stand-ins for torch's compiler and symbols: the same answers for plain values, the real module for all else."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import sys, torch
from opreplay.replay.resolve.meta.tracing_modules import DYNAMO, SYMBOLS, SYMPY, put_stand_ins
put_stand_ins()
a = torch.empty((4, 8), device="meta")
assert torch.ops.aten.mul.Tensor(a, torch.empty((1, 8), device="meta")).shape == (4, 8)
assert torch.ops.aten.linear.default(a, torch.empty((3, 8), device="meta")).shape == (4, 3)
assert torch.ops.aten.softmax.int(a, 1).shape == (4, 8)
import sympy as light_sympy
try:
    torch.ops.aten.linear.default(a, torch.empty((3, 9), device="meta"))
    raise SystemExit("sizes that do not fit were taken")
except RuntimeError:
    pass
light = {name for name in (DYNAMO, SYMBOLS, SYMPY) if type(sys.modules[name]).__name__ == "_StandIn"}
from torch.fx.experimental.symbolic_shapes import ShapeEnv, expect_true
import torch._dynamo.config
assert ShapeEnv().create_unbacked_symint() is not None and expect_true(True)
assert torch.compile(lambda x: x + 1, backend="eager")(torch.zeros(2)).tolist() == [1, 1]
import sympy
assert isinstance(sympy.Symbol("x"), light_sympy.Basic) and light_sympy.Basic is sympy.Basic
assert {type(sys.modules[name]).__name__ for name in (DYNAMO, SYMBOLS, SYMPY)} == {"module"}
print(sorted(light))
"""


@pytest.mark.slow
def test_they_answer_for_plain_values_and_give_way() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["['sympy',", "'torch._dynamo',", "'torch.fx.experimental.symbolic_shapes']"]
