# pyright: strict
"""The process that an op is checked in, seen from inside: trials in, findings out, and it dies with its parent.

Started by `isolated` beside it; nothing else imports it.
"""

from __future__ import annotations

import os
import socket

import msgspec

from opreplay.replay.check.bench import all_trials, make_bench
from opreplay.replay.check.calling.refusals import words
from opreplay.replay.check.model import Finding, Listed, Setup, Timed, Trial, Trying
from opreplay.replay.check.points.trials import Attempt
from opreplay.replay.execute.messages import Refused
from opreplay.replay.host.channel import receive, send
from opreplay.replay.host.limits import die_with, limit_files
from opreplay.replay.ir.reasons import NotReplayable
from opreplay.traces.errors import OpReplayError


def serve(descriptor: int, parent: int) -> None:
    """Work on trials from the socket until it closes."""
    die_with(parent)
    with socket.socket(fileno=descriptor) as channel:
        setup = msgspec.msgpack.decode(receive(channel) or b"", type=Setup)
        limit_files()
        try:
            bench, assumed = make_bench(setup, trying=lambda case: send(channel, Trying(case=case)))
            trials = all_trials(bench, setup)
            bench.trying = None
        except OpReplayError as error:
            send(channel, Refused.of(error))
            return
        send(
            channel,
            Listed(
                op=setup.op,
                against=bench.reference.text,
                trials={point: tuple(one.case for one in made) for point, made in trials.items()},
                cases=tuple(base.text for base in bench.bases),
                facts=bench.facts,
                assumptions=assumed,
            ),
        )
        decoder = msgspec.msgpack.Decoder(Trial)
        while (frame := receive(channel)) is not None:
            trial = decoder.decode(frame)
            found = run_trial(trials[trial.point][trial.number])
            if not _alive(bench.executor.synchronize):
                # Device errors come late and stay: this process is of no more use. Its last words are the finding.
                os.write(2, b"the device is lost\n")
                os._exit(1)
            send(channel, found)


def run_trial(attempt: Attempt) -> Finding | Timed:
    """What became of one trial; whatever it raises is a finding."""
    try:
        return attempt.run()
    except NotReplayable as stopped:
        return Finding(case=attempt.case, verdict="not applicable", detail=str(stopped.reason))
    except Exception as error:  # ops raise anything
        return Finding(case=attempt.case, verdict="fail", detail=words(error))


def _alive(synchronize: object) -> bool:
    try:
        assert callable(synchronize)
        synchronize()
    except Exception:
        return False
    return True
