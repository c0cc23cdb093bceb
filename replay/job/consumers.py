# pyright: strict
"""Those who take the events of a job: the one loop that hands events out, and the writer of records."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import suppress

from opreplay.replay.job.events import Ended, Event, Failed, Measured, Skipped, Started
from opreplay.replay.results.reading import ResultSink
from opreplay.replay.results.records import Record
from opreplay.traces.errors import EnvironmentRefused

Consumer = Callable[[Event], None]
Events = Generator[Event, None, None]


def deliver(events: Events, *consumers: Consumer) -> None:
    """Hand each event to every consumer, in the order given.

    An error in a consumer ends the job as an error of the job itself does: all consumers get an `Ended` that has it,
    then it is raised. What a full disk does to writing that last event does not hide the first error.
    """
    try:
        while (event := next(events, None)) is not None:
            try:
                _hand_out(event, consumers)
            except BaseException as error:
                _hand_out(events.throw(error), consumers)
                next(events)
    finally:
        events.close()


def _hand_out(event: Event, consumers: Iterable[Consumer]) -> None:
    if isinstance(event, Ended) and event.error is not None:
        with suppress(OSError, EnvironmentRefused):
            _call(event, consumers)
        return
    _call(event, consumers)


def _call(event: Event, consumers: Iterable[Consumer]) -> None:
    for consumer in consumers:
        consumer(event)


def records_of(event: Event) -> tuple[Record, ...]:
    """Return the records that a result file has of an event."""
    match event:
        case Started():
            return (event.record,)
        case Measured() | Skipped() | Failed():
            return (event.result,)
        case Ended(already=False):
            return (*event.records, event.summary)
        case _:
            return ()


def writing(sink: ResultSink) -> Consumer:
    """Return a consumer that writes the records of a run to a sink."""

    def write(event: Event) -> None:
        for record in records_of(event):
            sink.write(record)

    return write
