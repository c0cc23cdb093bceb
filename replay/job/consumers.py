# pyright: strict
"""Consumers of a job's events: the loop that passes events to consumers, and a consumer that writes records."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from typing import Any

from opreplay.replay.job.events import Ended, Event, Failed, Measured, Skipped, Started
from opreplay.replay.results.reading import ResultSink
from opreplay.replay.results.records import Record
from opreplay.traces.errors import EnvironmentRefused

Consumer = Callable[[Event], None]
Events = Generator[Event, None, None]


def deliver(events: Events, *consumers: Consumer) -> None:
    """Pass each event to every consumer, in order.

    If a consumer raises, all consumers get an `Ended` event with the error, and the error is raised again. A second
    error, e.g. a full disk while `Ended` is written, is suppressed.
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
    """Return the records that an event adds to the result file."""
    match event:
        case Started():
            return (event.record,)
        case Measured() | Skipped() | Failed():
            return (event.result,)
        case Ended(already=False):
            return (*event.records, event.summary)
        case _:
            return ()


class _Tee(Generator[Event, None, None]):
    """An iterator over events that passes each event to a consumer before it yields the event."""

    def __init__(self, events: Events, consumer: Consumer) -> None:
        self._events, self._consumer = events, consumer

    def send(self, value: None, /) -> Event:
        return self._seen(self._events.send(value))

    def throw(self, *error: Any) -> Event:
        return self._seen(self._events.throw(*error))

    def close(self) -> None:
        self._events.close()

    def _seen(self, event: Event) -> Event:
        self._consumer(event)
        return event


def tee(events: Events, consumer: Consumer) -> Events:
    """Return the same events. `consumer` gets each event before the caller does, and must not raise."""
    return _Tee(events, consumer)


def write_to(sink: ResultSink) -> Consumer:
    """Return a consumer that writes a run's records to a sink."""

    def write(event: Event) -> None:
        for record in records_of(event):
            sink.write(record)

    return write
