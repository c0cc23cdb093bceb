# pyright: strict
"""Repair the text of one broken event; `salvage` finds broken events."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

_CONTROL = re.compile(r"[\x00-\x1f]")
_BAD_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_INNER_QUOTE = re.compile(r'(?<!\\)((?:\\\\)*)"')
_QUOTE = re.compile(r'(\\*)"')
_SPACE = re.compile(r"[ \t\r\n]*")
_WORD = re.compile(r'[^\s,:\[\]{}"]+')
_JSON_WORD = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null")
_NOT_FINITE = re.compile(r"[+-]?(?:nan|inf(?:inity)?)", re.IGNORECASE)
_UNICODE_LOSS = "�"

EVENT_KEYS = frozenset((
    "args", "bind_id", "bp", "cat", "cname", "dur", "flow_in", "flow_out", "id", "id2", "name", "ph", "pid", "s",
    "scope", "sf", "stack", "tdur", "tid", "ts", "tts",
))  # fmt: skip
"""Keys of a trace event, as opposed to keys in its arguments."""
_NEXT_KEY = re.compile(r'"(?:args|cat|dur|ph|pid|tid|ts)"\s*:')
"""Keys that continue an event after a string or begin another event; no name contains such text."""
_OWN_KEY = re.compile(r'"(cat|name|ph|pid|tid|ts)"\s*:')
"""Keys of an event that never occur in its arguments."""
_INNER_KEY = re.compile(r'\\"\s*:')
_KEY_END = re.compile(r'"\s*:')
_CLOSING_QUOTE = re.compile(r'[^"]*"\s*[,:]')
"""Start of a string in which the first inner quote ends a value. A name opens quotes before it closes them."""
_OVERWRITTEN = re.compile(r"\x00{2}|[\x00-\x20]{64}")
"""Runs of characters that no string of an event contains; they come from file blocks never written or erased."""

UTF8 = "invalid UTF-8"
QUOTES = "unescaped quote"
CONTROLS = "control character in a string"
MAX_BYTES = 1 << 20
"""Maximum bytes of a broken event that is repaired; larger events are dropped."""
MAX_ENDS_OF_STRING = 256
"""Maximum number of quotes tried as the end of one string."""
MAX_TRIES = 150
"""Number of alternative string ends that are tried in one event before its repair is given up."""
MAX_DEPTH = 64
"""Maximum nesting depth of brackets."""


class Form(NamedTuple):
    """What is known about an object to repair."""

    keys: frozenset[str]
    """The object's own keys, without keys of nested objects."""
    stops: re.Pattern[str]
    """Pattern of keys that no string of the object contains. If such a key follows a string, the string has ended."""
    needs: str
    """Key that every object of this form has after its name. If it is missing, the name may have absorbed it."""
    quoted: str = "name"
    """The only key whose value may contain quotes."""


EVENT = Form(EVENT_KEYS, _NEXT_KEY, "ts")


def repairs(fragment: bytes, form: Form | None = EVENT) -> Iterator[tuple[bytes, tuple[str, ...]]]:
    """Yield repaired texts of one object, the most likely first, each with the reasons for its changes.

    The first text has only keys of `form`, each once. If `form` is None, nothing is assumed about the object.
    """
    if len(fragment) > MAX_BYTES:
        return
    text = fragment.decode("utf-8", "replace")
    lossy = _UNICODE_LOSS in text and _UNICODE_LOSS.encode() not in fragment
    before = (UTF8,) if lossy else ()
    if lossy:
        yield text.encode(), before
    places = _Places(text, _NEXT_KEY if form is None else form.stops)
    for each_once in (True, False) if form is not None else (False,):
        repaired = _Repair(places, form, each_once=each_once).run()
        if repaired is not None and (form is None or not _joined(*repaired)):
            fixed, reasons = repaired
            yield fixed.encode("utf-8", "replace"), tuple(dict.fromkeys((*before, *reasons)))


def is_hole(fragment: bytes) -> bool:
    """Check whether a broken event shows that bytes are missing or overwritten; several events may then be lost.

    The event then repeats one of its own keys, has runs of zeros or blanks, or lacks brackets or quotes.
    """
    text = fragment.decode("utf-8", "replace")
    keys = [match[1] for match in _OWN_KEY.finditer(text)]
    lacks = any(text.count(opening) != text.count(closing) for opening, closing in ("{}", "[]"))
    lacks |= len(_INNER_QUOTE.findall(text)) % 2 == 1
    return len(set(keys)) < len(keys) or lacks or _OVERWRITTEN.search(text) is not None


def _joined(fixed: str, reasons: tuple[str, ...]) -> bool:
    """Check whether a repair joined the start of one event to the end of another event."""
    if not reasons:
        return False
    if (QUOTES in reasons or CONTROLS in reasons) and _OVERWRITTEN.search(fixed):
        return True
    try:
        json.loads(fixed, object_pairs_hook=_each_once)
    except _Repeated:
        return True
    except (ValueError, RecursionError):
        pass
    return False


class _Repeated(Exception):
    """A key occurs twice in one object."""


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise _Repeated
    return made


class _Places:
    """Positions in a text at which its strings may end."""

    def __init__(self, text: str, stops: re.Pattern[str]) -> None:
        self.text = text
        found = list(_QUOTE.finditer(text))
        self.quotes = [match.end() - 1 for match in found]
        self.escaped = [len(match[1]) % 2 == 1 for match in found]
        """Whether each quote has a backslash before it."""
        self.next_keys = [match.start() - 1 for match in stops.finditer(text)]
        self.key_ends = [match.start() for match in _KEY_END.finditer(text)]


class _State(msgspec.Struct):
    """The state of parsing a text."""

    at: int = 0
    stack: str = ""
    """Open brackets, outermost first."""
    expect: str = "value"
    """Token expected next: "value", "item" (or the end of a list), "key" (or the end of an object), "colon",
    "after".
    """
    out: int = 0
    """Number of pieces written so far."""
    comma: bool = False
    """Whether a comma was read that must be written before the next item."""
    reasons: tuple[str, ...] = ()
    key: str = ""
    """Latest key read in the outermost object."""
    seen: frozenset[str] = msgspec.field(default_factory=frozenset[str])
    """Keys read so far in the outermost object."""


class _Choice(msgspec.Struct):
    """A string for which several quotes may be the closing one."""

    saved: _State
    ends: Iterator[int]
    tried: bool = False
    """Whether the first of the possible closing quotes was tried."""


class _Repair:
    """Parser of a text as damaged JSON, with backtracking.

    If a string may end at several quotes, the first quote that fits the rest of the text is used. A position from which
    no repair worked is not tried again, so the time is linear in the number of quotes.
    """

    def __init__(self, places: _Places, form: Form | None, *, each_once: bool) -> None:
        """Create a parser. `each_once` allows the outermost object only the keys of `form`, each at most once."""
        self._places, self._text, self._form, self._each_once = places, places.text, form, each_once
        self._out: list[str] = []
        self._tries = 0
        self._dead: set[tuple[int, str, str]] = set()
        self._choices: list[_Choice] = []

    def run(self) -> tuple[str, tuple[str, ...]] | None:
        """Return the repaired text and the reasons for the changes, or None if no repair works."""
        state: _State | None = _State()
        while state is not None:
            if state.expect == "end" or not self._step(state):
                state = self._back()
            elif state.expect == "end" and self._swallowed_nothing(state):
                return "".join(self._out), state.reasons
        return None

    def _swallowed_nothing(self, state: _State) -> bool:
        """Check that a name with inner quotes did not absorb keys of the event.

        An event that still has its time passes the check.
        """
        if self._form is None or self._form.needs in state.seen or QUOTES not in state.reasons:
            return True
        return _INNER_KEY.search("".join(self._out)) is None

    def _back(self) -> _State | None:
        """Backtrack to the next possible end of the latest string; return the state there, or None if none is left."""
        while self._choices:
            choice = self._choices[-1]
            end = next(choice.ends, None)
            if end is None:
                self._choices.pop()
                self._dead.add((choice.saved.at, choice.saved.stack, choice.saved.expect))
                continue
            self._tries += choice.tried
            if self._tries > MAX_TRIES:
                return None
            choice.tried = True
            state = msgspec.structs.replace(choice.saved)
            del self._out[state.out :]
            if self._take_string(state, end):
                return state
        return None

    def _step(self, state: _State) -> bool:
        """Parse one token; return False if the text cannot be JSON from here on."""
        text = self._text
        at = state.at
        space = _SPACE.match(text, at)
        state.at = space.end() if space else at
        if state.at > at:
            self._write(state, text[at : state.at])
        if state.at >= len(text):
            return False
        char = text[state.at]
        if state.expect == "colon":
            return char == ":" and self._mark(state, ":", "value")
        if char in "]}":
            return self._close(state, char)
        if state.expect == "after" and char != ",":
            self._change(state, "missing comma")
            state.comma, state.expect = True, "key" if state.stack[-1] == "{" else "item"
            if state.expect == "key" and char != '"':
                return False
        if char == ",":
            return self._comma(state)
        if char == '"':
            return self._string(state)
        if state.expect == "key":
            return False
        return self._open(state, char) if char in "{[" else char != ":" and self._word(state)

    def _comma(self, state: _State) -> bool:
        state.at += 1
        if state.expect == "after":
            state.comma, state.expect = True, "key" if state.stack[-1] == "{" else "item"
            return True
        self._change(state, "superfluous comma")
        return state.expect in ("key", "item")

    def _close(self, state: _State, char: str) -> bool:
        opening = "{" if char == "}" else "["
        if not state.stack.endswith(opening) or state.expect == "value":
            return False
        if state.comma:
            self._change(state, "superfluous comma")
            state.comma = False
        state.stack = state.stack[:-1]
        if state.stack:
            return self._mark(state, char, "after")
        rest = self._text[state.at + 1 :]
        return not rest.strip() and self._mark(state, char, "end")

    def _open(self, state: _State, char: str) -> bool:
        if len(state.stack) >= MAX_DEPTH:
            return False
        self._pending(state)
        state.stack += char
        return self._mark(state, char, "key" if char == "{" else "item")

    def _word(self, state: _State) -> bool:
        match = _WORD.match(self._text, state.at)
        if match is None:
            return False
        word = match[0]
        if _NOT_FINITE.fullmatch(word):
            word = f'"{word}"'
            self._change(state, "NaN or infinity")
        elif not _JSON_WORD.fullmatch(word):
            return False
        self._pending(state)
        self._write(state, word)
        state.at, state.expect = match.end(), "after"
        return bool(state.stack)

    def _string(self, state: _State) -> bool:
        if not state.stack or (state.at, state.stack, state.expect) in self._dead:
            return False
        saved = msgspec.structs.replace(state)
        self._choices.append(_Choice(saved=saved, ends=self._ends(saved)))
        return False  # `_back` takes the first end

    def _ends(self, state: _State) -> Iterator[int]:
        """Yield the positions of quotes that may end the current string, quotes without a preceding backslash first."""
        text, start = self._text, state.at + 1
        quotes, escaped = self._places.quotes, self._places.escaped
        follow = ":" if state.expect == "key" else ',}"' if state.stack[-1] == "{" else ',]"'
        first, stop = bisect_left(quotes, start), self._stop(state)
        for with_backslash in (False, True):
            for i in range(first, min(first + MAX_ENDS_OF_STRING, len(quotes))):
                end = quotes[i]
                if end > stop:
                    break
                if escaped[i] is with_backslash and (space := _SPACE.match(text, end + 1)):
                    after = text[space.end() : space.end() + 1]
                    if after and after in follow:
                        yield end
                    if state.expect == "key" and not with_backslash:
                        return  # no quotes in keys

    def _stop(self, state: _State) -> int:
        """Return the last position where the current string may end."""
        places = self._places
        outermost = len(state.stack) == 1 or (not self._each_once and state.stack[-1] == "{")
        stops = places.next_keys if outermost else places.key_ends
        at = bisect_left(stops, state.at + 1)
        return stops[at] if at < len(stops) and state.expect != "key" else len(self._text)

    def _take_string(self, state: _State, end: int) -> bool:
        """Write the string that ends at quote `end`; return False if it is a key that is not allowed, or cannot end
        there.
        """
        body = self._text[state.at + 1 : end]
        is_key = state.expect == "key"
        if is_key and len(state.stack) == 1:
            if self._each_once and (self._form is None or body not in self._form.keys or body in state.seen):
                return False
            state.key, state.seen = body, state.seen | {body}
        sound = _BAD_ESCAPE.sub(lambda match: match[0] if len(match[0]) > 1 else "\\\\", body)
        if sound.endswith("\\") and (len(sound) - len(sound.rstrip("\\"))) % 2:
            sound += "\\"
        if sound != body:
            self._change(state, "unescaped backslash")
        quoted = _INNER_QUOTE.sub(r'\1\\"', sound)
        if quoted != sound:
            if self._form is not None and len(state.stack) == 1 and state.key != self._form.quoted:
                return False
            inner = len(_INNER_QUOTE.findall(sound))
            if self._form is not None and (_CLOSING_QUOTE.match(sound) or (inner > 1 and inner % 2)):
                return False
            self._change(state, QUOTES)
        plain = _CONTROL.sub(" ", quoted)
        if plain != quoted:
            if self._form is not None and _OVERWRITTEN.search(quoted):
                return False
            self._change(state, CONTROLS)
        self._pending(state)
        self._write(state, f'"{plain}"')
        state.at, state.expect = end + 1, "colon" if is_key else "after"
        return True

    def _pending(self, state: _State) -> None:
        if state.comma:
            self._write(state, ",")
            state.comma = False

    def _mark(self, state: _State, char: str, expect: str) -> bool:
        self._write(state, char)
        state.at += 1
        state.expect = expect
        return True

    def _write(self, state: _State, piece: str) -> None:
        self._out.append(piece)
        state.out = len(self._out)

    @staticmethod
    def _change(state: _State, reason: str) -> None:
        if reason not in state.reasons:
            state.reasons = (*state.reasons, reason)
