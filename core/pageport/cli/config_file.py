"""``ConfigFile``: options of a command, read from a YAML file."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pageport.errors import ConfigurationError

# What each kind of number is called in messages.
NUMBERS: Mapping[Any, str] = {int: "a whole number", float: "a number"}


@dataclass(frozen=True)
class FileOption:
    """An option that a file may set: its parameter's name, how it may be spelled, and its type."""

    name: str
    spellings: tuple[str, ...]  # with dashes within, without those in front
    annotation: Any


@dataclass(frozen=True)
class Entry:
    """One key of a file. ``where`` is how messages call it: file, line and key."""

    key: str
    value: Any
    where: str


class ConfigFile:
    """A YAML file whose keys are options, with dashes or underscores within.

    Raises:
        ConfigurationError: it cannot be read, or is no such file.
    """

    def __init__(self, file: str) -> None:
        self._entries = _read(file)

    def settings(self, options: Iterable[FileOption]) -> dict[str, Any]:
        """Return the values by the names of their parameters; null is the same as leaving a key out.

        Raises:
            ConfigurationError: a key or a value is none of ``options``; names file, line and key.
        """
        by_spelling = {spelling: option for option in options for spelling in option.spellings}
        settings: dict[str, Any] = {}
        for entry in self._entries:
            option = by_spelling.get(_spelling(entry))
            if option is None:
                raise ConfigurationError(f"{entry.where} is no option of this command. {_hint(entry, by_spelling)}")
            if option.name in settings:
                raise ConfigurationError(f"{entry.where} is there a second time. Keep one of them.")
            settings[option.name] = None if entry.value is None else _converted(option.annotation, entry, entry.value)
        return {name: value for name, value in settings.items() if value is not None}


def _read(file: str) -> list[Entry]:
    import yaml  # type: ignore[import-untyped]  # ships no types

    try:
        text = Path(file).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigurationError(f"--config: {file} cannot be read: {reason}. Name a YAML file.") from error
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is None:
            return []
        if not isinstance(root, yaml.MappingNode):
            raise ConfigurationError(f"--config: {file} must hold lines like 'port: 8000', one for each option.")
        return [
            Entry(
                str(key.value),
                loader.construct_object(value, deep=True),
                f"{file}, line {key.start_mark.line + 1}: {key.value}",
            )
            for key, value in root.value
        ]
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        raise ConfigurationError(f"{file}{line} is no YAML: {error.problem}. Write lines like 'port: 8000'.") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigurationError(f"{file} is no YAML: {str(error).splitlines()[0]}.") from error


def _spelling(entry: Entry) -> str:
    return entry.key.replace("_", "-")


def _hint(entry: Entry, by_spelling: Mapping[str, FileOption]) -> str:
    wanted = _spelling(entry)
    positive = wanted.removeprefix("no-")
    if positive != wanted and positive in by_spelling:
        return f"Write {positive}: false."
    near = difflib.get_close_matches(wanted, by_spelling, n=1)
    return f"Did you mean {near[0]}?" if near else "Keys are what --help lists, without the two dashes."


def _converted(annotation: Any, entry: Entry, value: Any) -> Any:
    """Return ``value`` as the command line would read it.

    YAML takes words such as ``no`` and ``1.10`` for what may not be meant, so only a text becomes a text.

    Raises:
        ConfigurationError: it cannot.
    """
    kind = _plain(annotation)
    if get_origin(kind) is list:
        return [_converted(get_args(kind)[0], entry, item) for item in (value if isinstance(value, list) else [value])]
    if kind is bool:
        if not isinstance(value, bool):
            raise ConfigurationError(f"{entry.where} is {value!r}; write true or false.")
        return value
    if kind in NUMBERS:
        return _number(kind, entry, value)
    if not isinstance(value, str):
        # The value is not shown: it may be a key.
        raise ConfigurationError(f"{entry.where} is read as {_yaml_kind(value)}; it must be a text: put it in quotes.")
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        if value not in choices:
            raise ConfigurationError(f"{entry.where} is {value!r}; use one of {', '.join(map(str, choices))}.")
        return value
    return kind(value)


def _yaml_kind(value: Any) -> str:
    match value:
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case list() | dict():
            return "several values"
        case _:
            return f"a {type(value).__name__}"


def _number(kind: Any, entry: Entry, value: Any) -> int | float:
    is_whole = not isinstance(value, float)
    if not isinstance(value, bool) and isinstance(value, int | float | str) and (is_whole or kind is float):
        try:
            number: int | float = kind(value)
            return number
        except ValueError:
            pass
    raise ConfigurationError(f"{entry.where} is {value!r}; it must be {NUMBERS[kind]}.")


def _plain(annotation: Any) -> Any:
    """Strip what says how an option is shown, and that it may be left out."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        (annotation,) = (kind for kind in get_args(annotation) if kind is not NoneType)
    return annotation
