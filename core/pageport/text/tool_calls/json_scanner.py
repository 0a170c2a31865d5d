"""``JsonScanner``: is this still JSON? Asked character by character."""

import re
from enum import Enum, auto

WHITE_SPACE = " \t\n\r"
_OPENING = {"{": "}", "[": "]"}
_WORD_CHARACTERS = frozenset("+-.0123456789Eaeflnrstu")
_WORD = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null")
_HEXADECIMAL = frozenset("0123456789abcdefABCDEF")


class Step(Enum):
    """What a character did to the value."""

    GOES_ON = auto()
    ENDS = auto()  # it is the value's last
    ENDED_BEFORE = auto()  # it is not part of the value: numbers and words show their end only so
    BROKEN = auto()  # with it, this is no JSON


class _Expects(Enum):
    VALUE = auto()
    ITEM_OR_END = auto()
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    COMMA_OR_END = auto()
    STRING = auto()  # within one, as with the next three
    ESCAPED = auto()
    HEXADECIMAL = auto()
    WORD = auto()


class JsonScanner:
    """Follows one JSON value; any nesting, constant work a character.

    Control characters in strings, which JSON forbids and models write, are let through: ``escaped`` says how they
    should have been written.
    """

    def __init__(self) -> None:
        self._expects = _Expects.VALUE
        self._closing: list[str] = []
        self._word: list[str] = []
        self._num_hexadecimal = 0
        self._is_key = False

    def escaped(self, character: str) -> str:
        """Return the character that comes next as valid JSON has it."""
        if self._expects is _Expects.STRING and character < " ":
            return f"\\u{ord(character):04x}" if character not in "\n\t\r" else repr(character)[1:-1]
        return character

    def push(self, character: str) -> Step:
        """Take the next character; not to be called again after anything but GOES_ON."""
        match self._expects:
            case _Expects.STRING:
                if character == "\\":
                    self._expects = _Expects.ESCAPED
                return self._end_string() if character == '"' else Step.GOES_ON
            case _Expects.ESCAPED:
                self._expects = _Expects.HEXADECIMAL if character == "u" else _Expects.STRING
                self._num_hexadecimal = 0
                return Step.GOES_ON if character in '"\\/bfnrtu' else Step.BROKEN
            case _Expects.HEXADECIMAL:
                self._num_hexadecimal += 1
                if self._num_hexadecimal == 4:
                    self._expects = _Expects.STRING
                return Step.GOES_ON if character in _HEXADECIMAL else Step.BROKEN
            case _Expects.WORD:
                return self._push_word(character)
        return self._push_structure(character)

    def _push_word(self, character: str) -> Step:
        if character in _WORD_CHARACTERS:
            self._word.append(character)
            return Step.GOES_ON
        if _WORD.fullmatch("".join(self._word)) is None:
            return Step.BROKEN
        self._expects = _Expects.COMMA_OR_END
        return self._push_structure(character) if self._closing else Step.ENDED_BEFORE

    def _push_structure(self, character: str) -> Step:
        if character in WHITE_SPACE:
            return Step.GOES_ON
        match self._expects, character:
            case ((_Expects.KEY | _Expects.KEY_OR_END), '"'):
                self._is_key, self._expects = True, _Expects.STRING
            case _Expects.COLON, ":":
                self._expects = _Expects.VALUE
            case _Expects.COMMA_OR_END, ",":
                self._expects = _Expects.KEY if self._closing[-1] == "}" else _Expects.VALUE
            case ((_Expects.KEY_OR_END | _Expects.ITEM_OR_END | _Expects.COMMA_OR_END), ("}" | "]")):
                return self._close(character)
            case ((_Expects.VALUE | _Expects.ITEM_OR_END), _):
                return self._begin_value(character)
            case _:
                return Step.BROKEN
        return Step.GOES_ON

    def _begin_value(self, character: str) -> Step:
        if character in _OPENING:
            self._closing.append(_OPENING[character])
            self._expects = _Expects.KEY_OR_END if character == "{" else _Expects.ITEM_OR_END
        elif character == '"':
            self._is_key, self._expects = False, _Expects.STRING
        elif character in _WORD_CHARACTERS:
            self._word, self._expects = [character], _Expects.WORD
        else:
            return Step.BROKEN
        return Step.GOES_ON

    def _end_string(self) -> Step:
        if self._is_key:
            self._expects = _Expects.COLON
            return Step.GOES_ON
        self._expects = _Expects.COMMA_OR_END
        return Step.GOES_ON if self._closing else Step.ENDS

    def _close(self, character: str) -> Step:
        if self._closing.pop() != character:
            return Step.BROKEN
        self._expects = _Expects.COMMA_OR_END
        return Step.GOES_ON if self._closing else Step.ENDS


def is_object(text: str) -> bool:
    """Whether ``text`` is one JSON object and nothing else."""
    scanner = JsonScanner()
    for position, character in enumerate(text):
        step = scanner.push(character)
        if step is not Step.GOES_ON:
            return step is Step.ENDS and text.startswith("{") and position == len(text) - 1
    return False
