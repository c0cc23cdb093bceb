# pyright: strict
"""Select the programs, and the ranks of their tensors, to emit for other compilers: those with correct values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

from opreplay.replay.ascend.profile import DeviceProfile
from opreplay.replay.tile.cases import Case, base_cases, default_set, parse_case
from opreplay.replay.tile.emit.triton import Emitted, Refusal, emit
from opreplay.replay.tile.program import Program, reference_of
from opreplay.replay.tile.study import Broken, first_wrong
from opreplay.traces.errors import UsageError
from opreplay.traces.model import TensorMeta

MADE_UP = 128
"""Size of every dimension in generated cases, for programs without cases."""
MOST_RANKED = 5
"""Maximum number of input tensors for which all mixes of vectors and matrices are tried. With more, only
matrices are.
"""


def emit_right(
    programs: Sequence[Program],
    cases: Sequence[Case],
    device: DeviceProfile,
    on_step: Callable[[str], None] = lambda _: None,
) -> Emitted:
    """Emit those programs whose values are correct, and list the errors of the others.

    Values are checked for the given cases and for the programs' own cases. A program without cases is emitted for those
    ranks of its tensors (vectors or matrices) that give correct values.
    """
    right: list[Case] = []
    chosen: list[Program] = []
    refused: list[Refusal] = []
    for program in programs:
        on_step(program.name)
        mine = [case for case in cases if case.program is program] or own_cases(program)
        wrong = first_wrong([*mine, *_around(program, mine)], device) if mine else None
        if not mine:
            mine, wrong = _of_right_ranks(program, device)
        if wrong is None and mine:
            chosen.append(program)
            right += mine
        elif wrong is None:
            refused.append(
                Refusal(program, _line_of(program), "no case gives its sizes, and it has no reference: use --case")
            )
        else:
            refused.append(Refusal(program, wrong.line, f"the program is wrong ({wrong.limit}): {wrong.message}"))
    emitted = emit(chosen, right)
    return Emitted(emitted.text, emitted.programs, (*refused, *emitted.refused))


def own_cases(program: Program) -> list[Case]:
    """Return the cases in the program's definition."""
    if program.cases:
        return list(base_cases(program))
    return [parse_case(f"{program.name} {text}", [program]) for text in program.checks]


def _around(program: Program, cases: Sequence[Case]) -> list[Case]:
    """Return variants of the first case with small and odd sizes."""
    return list(default_set(program, cases[0]))


def _of_right_ranks(program: Program, device: DeviceProfile) -> tuple[list[Case], Broken | None]:
    """Return the generated vector and matrix cases with correct values. If there are none, also return the error with
    matrices.
    """
    if reference_of(program) is None:
        return [], None
    names = [p.name for p in program.inputs if p.role != "scalar"]
    choices = product((2, 1), repeat=len(names)) if len(names) <= MOST_RANKED else [(2,) * len(names)]
    right: list[Case] = []
    first: Broken | None = None
    for ranks in choices:
        arguments = {
            name: TensorMeta(shape=(MADE_UP,) * rank, dtype=program.dtypes[0])
            for name, rank in zip(names, ranks, strict=True)
        }
        case = Case(program=program, arguments=arguments)
        try:
            wrong = first_wrong([case, *_around(program, [case])], device, every=True)
        except UsageError as error:  # ranks that the reference refuses
            wrong = Broken(line=_line_of(program), limit="ranks", message=error.problem, file="")
        if wrong is None:
            right.append(case)
        first = first or wrong
    return right, None if right else first


def _line_of(program: Program) -> int:
    return program.function.__code__.co_firstlineno
