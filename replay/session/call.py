# pyright: strict
"""One op made ready in this process: its tensors to look at and to change, its result, its time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opreplay.replay.execute.options import RunOptions
from opreplay.replay.session.setting import executor_on

if TYPE_CHECKING:
    from opreplay.replay.execute.executors.torch.device import TorchPrepared
    from opreplay.replay.ir.model import Assumption, ReplayOp
    from opreplay.replay.results.measurement import Measurement


class PreparedCall:
    """An op with its arguments, allocated and filled; made by `Op.prepare`."""

    def __init__(self, op: ReplayOp, prepared: TorchPrepared, options: RunOptions) -> None:
        self.op = op
        self._prepared, self._options = prepared, options

    @property
    def function(self) -> Any:
        """What is called: an overload of torch, a stand-in, or a function of the user's."""
        return self._prepared.overload_call.func

    @property
    def args(self) -> tuple[Any, ...]:
        """Positional arguments; tensors are those that the call uses."""
        return self._prepared.overload_call.args

    @property
    def kwargs(self) -> dict[str, Any]:
        """Arguments by name."""
        return dict(self._prepared.overload_call.keywords)

    @property
    def initializer(self) -> str | None:
        """What filled the tensors; None for an op without any."""
        return self._prepared.initializer

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """All that the trace does not say and that was filled in."""
        return self.op.assumptions + self._prepared.assumptions

    def __call__(self) -> Any:
        """Call the op once, without gradients; its result. Whatever the op raises passes through."""
        import torch

        with torch.no_grad():
            return self._prepared.call()

    def reset(self) -> None:
        """Give arguments that the op writes to their first values again."""
        self._prepared.reset()

    def measure(self, options: RunOptions | None = None) -> Measurement:
        """Time calls with these very arguments, in this process; the options of `prepare` unless others are given."""
        from opreplay.replay.execute.threads import measure_on_idle

        options = options or self._options
        with executor_on(options) as executor:
            return measure_on_idle(executor, self._prepared, options)

    def __repr__(self) -> str:
        from opreplay.replay.ir.describe import describe_inputs
        from opreplay.replay.report.text import safe

        notes = [f"{safe(note.argument)}: {safe(note.what)}" for note in self.assumptions]
        lines = [f"{safe(self.op.name)} on {self._options.device}: {safe(describe_inputs(self.op))}"]
        filling = self._prepared.filling
        said = f": {safe(filling.summary)}" if filling is not None and filling.summary else ""
        lines += [f"  filled by {self.initializer}{said}"] if self.initializer else []
        return "\n".join([*lines, *(f"  assumed {note}" for note in notes)])
