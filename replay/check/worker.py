# pyright: strict
"""Main code of the process that checks an op. It receives trials, sends findings, and exits with its parent.

The process is started by `isolated` in the same package. No other module imports this one.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec

from opreplay.replay.check.bench import prepare
from opreplay.replay.check.model import Listing, Setup, Trial, Trying
from opreplay.replay.execute.messages import Refused
from opreplay.replay.execute.processes.parent import Parent
from opreplay.replay.host.limits import limit_files
from opreplay.traces.errors import OpReplayError


def serve(descriptor: int, parent: int) -> None:
    """List the trials, then run the requested ones until the socket closes."""
    with Parent(descriptor, parent) as starter:
        setup = starter.config(Setup)
        limit_files()
        tasks = starter.tasks(msgspec.msgpack.Decoder(Listing | Trial), {})
        listing = next(tasks, None)
        if not isinstance(listing, Listing):
            return
        setup = msgspec.structs.replace(setup, lost=listing.lost)
        try:
            bench, trials, listed = prepare(setup, trying=lambda case: starter.say(Trying(case=case)))
        except OpReplayError as error:
            starter.say(Refused.of(error))
            return
        starter.say(listed)
        for trial in tasks:
            assert isinstance(trial, Trial)
            finding = trials[trial.point][trial.number].run()
            if not _alive(bench.executor.synchronize):
                # Device errors come late and stay: this process is of no more use. Its last words are the finding.
                os.write(2, b"the device is lost\n")
                os._exit(1)
            starter.say(finding)


def _alive(synchronize: Callable[[], None]) -> bool:
    try:
        synchronize()
    except Exception:
        return False
    return True
