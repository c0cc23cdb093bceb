"""How many tile programs that ship become Triton kernels that give the reference's values in Triton's interpreter.

    python benchmarks/tile_triton.py [NAME ...] [--json]

A line a program, and the count; exits with 1 where a kernel is wrong. Runs on a CPU, without a compiler.

Bar: 80 % of the programs.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton


def imported(text: str) -> ModuleType:
    """A module of source code."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernels.py"
        file.write_text(text)
        spec = importlib.util.spec_from_file_location("emitted_kernels", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)  # Triton reads the sources of kernels now
    return module


def checked(program: Any, module: ModuleType) -> str:
    """ "equal in N cases", or what is wrong."""
    import torch

    from opreplay.replay.tile.cases import base_cases, default_set
    from opreplay.replay.tile.check import compared, draw
    from opreplay.replay.tile.language.places import TileError
    from opreplay.replay.tile.program import bind

    cases = default_set(program, base_cases(program)[0])
    for case in cases:
        bound = bind(program, case.arguments, case.settings)
        arguments = draw(bound)
        results = {
            p.name: torch.full(meta.shape, 7, dtype=getattr(torch, meta.dtype))
            for p in program.outputs
            for meta in [bound.tensors[p.name]]
        }
        getattr(module, program.name)(*({**arguments, **results}[p.name] for p in program.parameters))
        try:
            compared(bound, arguments, list(results.values()))
        except TileError as error:
            return f"wrong for {case.text}: {error}"
    return f"equal in {len(cases)} cases"


def main() -> int:
    """Check the programs named, or all."""
    from opreplay.replay.tile import programs
    from opreplay.replay.tile.emit.triton import emit

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(programs.__all__))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    emitted = emit([getattr(programs, name) for name in options.names])
    module = imported(emitted.text)
    outcomes = {name: checked(getattr(programs, name), module) for name in emitted.programs}
    outcomes |= {refusal.program.name: f"refused: {refusal}" for refusal in emitted.refused}
    if options.json:
        print(json.dumps(outcomes))
    else:
        for name, outcome in outcomes.items():
            print(f"{name:20} {outcome}")
        equal = sum(outcome.startswith("equal") for outcome in outcomes.values())
        print(f"{equal} of {len(outcomes)} programs are kernels with the reference's values")
    return int(any(outcome.startswith("wrong") for outcome in outcomes.values()))


if __name__ == "__main__":
    raise SystemExit(main())
