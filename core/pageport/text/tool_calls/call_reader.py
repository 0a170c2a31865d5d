"""``CallReader``: tell an output's tool calls from its text."""

import json
import re
from collections.abc import Generator, Iterable
from dataclasses import replace
from itertools import groupby
from typing import TypeVar

from pageport.text.tool_calls.events import CallArguments, CallBegins, CallEnds, Content, Event
from pageport.text.tool_calls.json_scanner import WHITE_SPACE, JsonScanner, Step, is_object
from pageport.text.tool_calls.tool_format import ToolFormat

# Longest text before a call's arguments where no JSON says what it is, in characters.
MAX_HEADER = 512

T = TypeVar("T")
# Reads on from the current character. A yield asks for the next one; "" is the end.
Reading = Generator[None, None, T]


class CallReader:
    """Reads text that comes in pieces, character by character: how it is cut makes no difference.

    Arguments are passed on as they come, once the name is known. What turns out to be no call before that is content,
    unchanged. Arguments that turn out to be no JSON are passed on as they are, up to the end of the call.
    """

    def __init__(self, tool_format: ToolFormat, names: Iterable[str], *, max_calls: int | None = None) -> None:
        """Expect an output.

        Args:
            tool_format: of the calls.
            names: of the tools.
            max_calls: further calls are dropped.
        """
        self._format = tool_format
        self._names = frozenset(names)
        self._max_calls = max_calls
        self._num_calls = 0
        self._is_start = True
        self._is_unclosed = False  # a call's end marker may come
        self._follows_call = False
        self._is_plain = False  # outside of everything, and nothing withheld
        self._held: list[str] = []  # will be content or nothing
        self._events: list[Event] = []
        self._character = ""
        self._machine = self._read()
        first_characters = "".join({marker[0] for marker in tool_format.markers})
        self._plain = re.compile(rf"[^\s{re.escape(first_characters)}]+")

    def push(self, text: str) -> list[Event]:
        """Add text and return what is certain now."""
        position = 0
        while position < len(text):
            plain = self._plain.match(text, position) if self._is_plain else None
            if plain is not None:
                self._emit_content(plain.group())
                position = plain.end()
                continue
            self._character = text[position]
            next(self._machine)
            position += 1
        return self._take_events()

    def finish(self) -> list[Event]:
        """Return what was withheld, when no more text comes."""
        self._character = ""
        for _ in self._machine:
            raise AssertionError("reading went on after the end")
        is_gap = self._follows_call and "".join(self._held).isspace()
        if not is_gap:
            self._release()
        return self._take_events()

    def _read(self) -> Reading[None]:
        while self._character:
            begins = yield from self._read_text()
            while begins:
                begins = yield from self._read_calls()

    def _read_text(self) -> Reading[bool]:
        """Pass on text up to where calls may begin; return whether they may."""
        tail = ""  # may become a marker
        while self._character:
            if not tail:
                if self._format.may_stand_alone and self._is_start and self._character == "{":
                    return True
                if self._character.isspace():
                    yield from self._take()
                    continue
            tail += self._character
            markers = self._format.markers if self._is_unclosed else self._format.begin_markers
            while not any(marker.startswith(tail) for marker in markers):
                self._held.append(tail[0])
                self._release()
                tail = tail[1:]
            self._is_plain = not tail
            yield
            self._is_plain = False
            if tail == self._format.end_marker and tail:
                self._end_calls()
                tail = ""
            elif tail in markers:
                self._held.append(tail)
                return True
        if not (self._is_unclosed and tail and self._format.end_marker.startswith(tail)):
            self._held.append(tail)
        return False

    def _read_calls(self) -> Reading[bool]:
        """Read the calls that begin here; return whether a broken one ran into the marker of the next."""
        style = self._format
        yield from self._skip_space()
        if self._character == "[" and style.may_stand_in_list:
            yield from self._take()
            yield from self._skip_space()
        elif style.header is not None and self._character != "{":
            return (yield from self._read_headed_call(style.header))
        while True:
            num_calls = self._num_calls
            runs_on = yield from self._read_object()
            if runs_on:
                return True
            if self._num_calls == num_calls:
                self._release()
                return False
            yield from self._skip_space()
            if not style.separator or self._character != style.separator:
                break
            yield from self._take()
            yield from self._skip_space()
        if self._character == "]" and style.may_stand_in_list:
            yield
            self._held.clear()
        return False

    def _read_headed_call(self, header: re.Pattern[str]) -> Reading[bool]:
        text = ""
        while self._character not in ("", "{") and len(text) < MAX_HEADER:
            text += self._character
            yield from self._take()
        match = header.fullmatch(text)
        if match is None or self._character != "{":
            self._release()
            return False
        self._begin(match.group(1))
        return (yield from self._pass_arguments())

    def _read_object(self) -> Reading[bool]:
        """Read ``{"name": …, "arguments": …}``, or as much as is one; return whether broken arguments ran on."""
        if self._character != "{":
            return False
        yield from self._take()
        name: str | None = None
        arguments: str | None = None
        has_begun = False
        while True:
            yield from self._skip_space()
            if self._character == "}":
                break
            key = yield from self._read_string()
            if key is None or not self._may_have(key) or not (yield from self._skip_colon()):
                return False
            if key == "name" and name is None:
                name = yield from self._read_string()
                if not self._is_name(name):
                    return False
            elif key in self._format.argument_keys and name is not None and self._character == "{" and not has_begun:
                has_begun = True
                self._begin(name)
                if (yield from self._pass_arguments()):
                    return True
            else:
                value = yield from self._read_value()
                if value is None:
                    return False
                if key in self._format.argument_keys:
                    arguments = value
            yield from self._skip_space()
            if self._character == ",":
                yield from self._take()
            elif self._character != "}":
                return False
        given = _as_object(arguments)
        if not has_begun and (name is None or given is None):
            yield from self._take()
            return False
        yield
        if name is not None and given is not None and not has_begun:
            self._begin(name)
            self._emit(CallArguments(self._num_calls - 1, given))
            self._end()
        self._held.clear()
        return False

    def _pass_arguments(self) -> Reading[bool]:
        """Pass on the object that begins here; return whether it was broken and ran into the marker of the next."""
        scanner = JsonScanner()
        index = self._num_calls - 1
        while self._character:
            text = scanner.escaped(self._character)
            step = scanner.push(self._character)
            if step is Step.BROKEN:
                return (yield from self._pass_broken())
            self._emit(CallArguments(index, text))
            yield
            if step is Step.ENDS:
                break
        self._end()
        return False

    def _pass_broken(self) -> Reading[bool]:
        """Pass on all that comes before a marker, and say whether that begins the next call."""
        index = self._num_calls - 1
        tail = ""
        while self._character:
            tail += self._character
            while not any(marker.startswith(tail) for marker in self._format.markers):
                self._emit(CallArguments(index, tail[0]))
                tail = tail[1:]
            yield
            if tail and tail in self._format.markers:
                self._end()
                if tail == self._format.end_marker:
                    self._end_calls()
                    return False
                self._held.append(tail)
                return True
        if tail and not self._format.end_marker.startswith(tail):
            self._emit(CallArguments(index, tail))
        self._end()
        return False

    def _read_value(self) -> Reading[str | None]:
        """Read one JSON value; None: there is none."""
        scanner = JsonScanner()
        text: list[str] = []
        while self._character:
            escaped = scanner.escaped(self._character)
            step = scanner.push(self._character)
            if step is Step.BROKEN:
                return None
            if step is Step.ENDED_BEFORE:
                return "".join(text)
            text.append(escaped)
            yield from self._take()
            if step is Step.ENDS:
                return "".join(text)
        return None

    def _read_string(self) -> Reading[str | None]:
        if self._character != '"':
            return None
        text = yield from self._read_value()
        return None if text is None else _decoded(text)

    def _skip_space(self) -> Reading[None]:
        while self._character and self._character in WHITE_SPACE:
            yield from self._take()

    def _skip_colon(self) -> Reading[bool]:
        yield from self._skip_space()
        if self._character != ":":
            return False
        yield from self._take()
        yield from self._skip_space()
        return True

    def _take(self) -> Reading[None]:
        """Withhold this character and go to the next."""
        self._held.append(self._character)
        yield

    def _may_have(self, key: str) -> bool:
        style = self._format
        return not style.may_stand_alone or key in ("name", *style.argument_keys, *style.ignored_keys)

    def _is_name(self, name: str | None) -> bool:
        return bool(name) and (name in self._names or not self._format.may_stand_alone)

    def _begin(self, name: str) -> None:
        self._held.clear()
        self._is_start = False
        self._is_unclosed = bool(self._format.end_marker)
        self._num_calls += 1
        self._emit(CallBegins(self._num_calls - 1, name))

    def _end(self) -> None:
        self._follows_call = True
        self._emit(CallEnds(self._num_calls - 1))

    def _end_calls(self) -> None:
        self._held.clear()
        self._is_unclosed = False

    def _release(self) -> None:
        self._emit_content("".join(self._held))
        self._held.clear()

    def _emit_content(self, text: str) -> None:
        if text:
            self._is_start = self._follows_call = False
            self._events.append(Content(text))

    def _emit(self, event: CallBegins | CallArguments | CallEnds) -> None:
        if self._max_calls is None or event.index < self._max_calls:
            self._events.append(event)

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return join_events(events)


def join_events(events: Iterable[Event]) -> list[Event]:
    """Put texts of one kind that follow each other together."""
    joined: list[Event] = []
    for kind, group in groupby(events, _kind):
        if kind in (CallBegins, CallEnds):
            joined += group
            continue
        first, *others = (event for event in group if not isinstance(event, CallBegins | CallEnds))
        joined.append(replace(first, text="".join([first.text, *(event.text for event in others)])))
    return joined


def _kind(event: Event) -> type[Event]:
    # The arguments of two calls never touch: the end of one and the beginning of another stand between.
    return type(event)


def _as_object(arguments: str | None) -> str | None:
    """Return arguments as the JSON text of an object: nothing is an empty one, and text may hold one."""
    if arguments is None or arguments == "null":
        return "{}"
    text = _decoded(arguments) if arguments.startswith('"') else arguments
    if text is None:
        return None
    return (text.strip() or "{}") if not text.strip() or is_object(text.strip()) else None


def _decoded(text: str) -> str | None:
    """Return the text that a JSON string stands for; None: lone surrogates, which cannot be sent."""
    decoded = str(json.loads(text))
    return decoded if decoded.encode("utf-8", "ignore").decode() == decoded else None
