# pyright: strict
"""The process that an op is checked in, seen from inside: trials in, findings out, and it dies with its parent.

Started by `isolated` beside it; nothing else imports it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import msgspec

from opreplay.replay.check.bench import prepare
from opreplay.replay.check.model import Setup, Trial, Trying
from opreplay.replay.execute.messages import Refused
from opreplay.replay.host.channel import receive, send
from opreplay.replay.host.limits import die_with, limit_files
from opreplay.traces.errors import OpReplayError


def serve(descriptor: int, parent: int) -> None:
    """Work on trials from the socket until it closes."""
    die_with(parent)
    with socket.socket(fileno=descriptor) as channel:
        setup = msgspec.msgpack.decode(receive(channel) or b"", type=Setup)
        limit_files()
        try:
            bench, trials, listed = prepare(setup, trying=lambda case: send(channel, Trying(case=case)))
        except OpReplayError as error:
            send(channel, Refused.of(error))
            return
        send(channel, listed)
        decoder = msgspec.msgpack.Decoder(Trial)
        while (frame := receive(channel)) is not None:
            trial = decoder.decode(frame)
            finding = trials[trial.point][trial.number].run()
            if not _alive(bench.executor.synchronize):
                # Device errors come late and stay: this process is of no more use. Its last words are the finding.
                os.write(2, b"the device is lost\n")
                os._exit(1)
            send(channel, finding)


def _alive(synchronize: Callable[[], None]) -> bool:
    try:
        synchronize()
    except Exception:
        return False
    return True
