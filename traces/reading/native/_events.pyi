"""Types of the compiled half of the trace reader (events.c); `blocks.py` is its only user."""

from collections.abc import Callable
from typing import final

ROW_FORMAT: int

@final
class EventScanner:
    """Reads blocks of trace events into rows of integers."""

    def __init__(
        self,
        *,
        categories: tuple[tuple[bytes, int, int], ...],
        waits: tuple[bytes, ...],
        task_category: int,
        signatures: Callable[[bytes], int],
        kernel_names: Callable[[bytes], int],
        note_names: Callable[[bytes], int],
        tracks: Callable[[bytes], int],
        arrow_tracks: Callable[[bytes], int],
        seed: int,
        places: bool = False,
    ) -> None: ...
    @property
    def pending_rows(self) -> int: ...
    def scan(
        self, buffer: bytes | bytearray | memoryview, start: int, stop: int, exact: bool, /
    ) -> tuple[int, int] | None: ...
    def take(self) -> tuple[list[int], list[bytes], bool]: ...
