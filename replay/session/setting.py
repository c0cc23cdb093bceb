# pyright: strict
"""What the ops of one opened trace have in common: the device they are for, and what may be imported for them."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import msgspec

from opreplay.replay.execute.options import RunOptions
from opreplay.traces.errors import UsageError

if TYPE_CHECKING:
    from opreplay.replay.ascend import DeviceProfile
    from opreplay.replay.execute.executors.torch.device import TorchExecutor
    from opreplay.replay.ir.model import ReplayPlan
    from opreplay.traces import Trace

Read = TypeVar("Read", bound="Trace | ReplayPlan")
DEFAULT_SOC = "910b3"


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """How ops are resolved and run."""

    device: str = "cpu"
    """Of torch: "cpu", "cuda:0", "npu"."""
    allow_imports: dict[str, str] = {}
    """Namespace → module that the user allows to be imported."""
    plugins: tuple[str, ...] = ()
    """Files and modules of the user's that were run when the trace was opened."""

    def of_run(self, options: RunOptions | None) -> RunOptions:
        """The options with this device, these imports and plugins. Raises UsageError where they name another device."""
        options = options or RunOptions()
        if options.device not in (RunOptions().device, self.device):
            raise UsageError(
                f"the ops were resolved for {self.device}, but the options name {options.device}",
                hint=f"Open the trace with device={options.device!r}.",
            )
        return msgspec.structs.replace(
            options,
            device=self.device,
            allow_imports={**self.allow_imports, **options.allow_imports},
            plugins=tuple(dict.fromkeys((*self.plugins, *options.plugins))),
        )


@contextmanager
def executor_on(options: RunOptions) -> Generator[TorchExecutor, None, None]:
    """The back-end for ops in this process; torch's threads and gradient mode are the caller's again at the end.

    Raises EnvironmentRefused when the device is not there, UsageError for what cannot be loaded.
    """
    from opreplay.replay.execute.engines import worker_config
    from opreplay.replay.execute.executors.make import make_executor
    from opreplay.replay.execute.executors.torch.device import TorchExecutor

    executor = make_executor(worker_config(options))
    try:
        if not isinstance(executor, TorchExecutor):
            raise UsageError("ops in this process always run through torch", hint='Remove executor="fake".')
        yield executor
    finally:
        executor.close()


def warned(line: str) -> None:
    """Warn of what the command line says on stderr beside its answer."""
    warnings.warn(line, stacklevel=2)


def warned_of(read: Read) -> Read:
    """Return what was read from a file, with warnings about what is lost, wrong or unknown in it."""
    from opreplay.replay.plan.inputs import WARNING, warnings_of

    for line in warnings_of(read):
        warned(line.removeprefix(WARNING))
    return read


def several(given: str | Sequence[str]) -> tuple[str, ...]:
    """Return one text or several as a tuple: a single text is one value, not its letters."""
    return (given,) if isinstance(given, str) else tuple(given)


def devices_of(soc: str | Sequence[str], cluster: str | None = None) -> dict[str, DeviceProfile]:
    """Simulated devices by name or device file. Raises UsageError for an unknown one."""
    from opreplay.replay.ascend.simulate.devices import load_socs

    return load_socs(several(soc), cluster)
