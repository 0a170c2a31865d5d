"""``judge``: what a change of the interface's text means to plugins written before it.

A minor version adds what nobody has to know of; everything else is a new major version. Methods of abstract classes
are overridden by plugins and called by core: an argument more, even with a default, is one that their overrides do not
take. Other classes and functions are used by plugins as they are.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

Kind = Literal["same", "minor", "major"]
Version = tuple[int, int]
# What is compared on its own.
VERSION_NAME = "INTERFACE"


class Change(NamedTuple):
    """One difference: ``what`` says in a sentence what it is and what it means."""

    kind: Literal["minor", "major"]
    what: str


class Verdict(NamedTuple):
    """All differences of two texts, and the gravest kind among them."""

    kind: Kind
    changes: tuple[Change, ...]


def judge(old: str, new: str) -> Verdict:
    """Compare two texts that ``pageport.backend.lock.render`` gave."""
    changes = tuple(_compare_texts(_parse(old), _parse(new)))
    if not changes and _words(old) != _words(new):
        changes = (Change("major", "Something differs that this comparison does not know."),)
    kinds = {change.kind for change in changes}
    return Verdict("major" if "major" in kinds else "minor" if kinds else "same", changes)


def _words(text: str) -> list[str]:
    """Return what a text holds, in whatever order, without its version."""
    return sorted(re.findall(r"\w+", re.sub(rf"^interface .*|^{VERSION_NAME} = .*", "", text, flags=re.MULTILINE)))


def version_of(text: str) -> Version:
    """Return the version that a text is of."""
    found = re.match(r"interface (\d+)\.(\d+)\n", text)
    if found is None:
        raise ValueError(f"An interface's text starts with its version, not with {text[:40]!r}.")
    return int(found[1]), int(found[2])


def next_version(version: Version, kind: Kind) -> Version:
    """Return the lowest version for an interface that differs from ``version`` by a change of this kind."""
    major, minor = version
    if major == 0 or kind == "same":
        return version  # before 1.0 nothing is promised
    return (major, minor + 1) if kind == "minor" else (major + 1, 0)


Definitions = dict[tuple[str, str], ast.stmt]


def _parse(text: str) -> Definitions:
    """Return the definitions by module and name."""
    definitions: Definitions = {}
    for module, body in re.findall(r"^from (\S+)\n(.*?)(?=^from |\Z)", text, re.DOTALL | re.MULTILINE):
        # Classes and functions stand there without what they hold.
        source = re.sub(r"^(class .*)$", r"\1:\n    ...", body, flags=re.MULTILINE)
        source = re.sub(r"^( *)(def .*)$", r"\1\2: ...", source, flags=re.MULTILINE)
        for node in ast.parse(source).body:
            definitions[module, _name(node)] = node
    return definitions


def _compare_texts(old: Definitions, new: Definitions) -> Iterator[Change]:
    for key, node in old.items():
        module, name = key
        if name == VERSION_NAME:
            continue
        if key in new:
            yield from _compare(name, node, new[key])
            continue
        elsewhere = next((other for other, same in new if same == name), None)
        yield _major(f"{module}.{name}", f"moved to {elsewhere}" if elsewhere else "is gone")
    yield from (_minor(f"{module}.{name}", "is new") for module, name in new if (module, name) not in old)


def _compare(name: str, old: ast.stmt, new: ast.stmt) -> Iterator[Change]:
    match old, new:
        case ast.ClassDef(), ast.ClassDef():
            yield from _compare_classes(name, old, new)
        case ast.FunctionDef(), ast.FunctionDef():
            yield from _compare_functions(name, old, new, is_overridden=False)
        case ((ast.Assign() | ast.AnnAssign()), (ast.Assign() | ast.AnnAssign())):
            if _gains(_constant(old.value), _constant(new.value)) or _is_widened(old.value, new.value):
                yield _minor(name, f"was {_text(old.value)} and has more now")
            elif _text(old.value) != _text(new.value):
                yield _major(name, f"was {_text(old.value)} and is {_text(new.value)}")
        case _:
            yield _major(name, "is a definition of another kind")


# --- classes ---------------------------------------------------------------------------------------------------------


def _compare_classes(name: str, old: ast.ClassDef, new: ast.ClassDef) -> Iterator[Change]:
    for what, before, after in (
        ("decorators", old.decorator_list, new.decorator_list),
        ("bases", old.bases, new.bases),
    ):
        if _texts(before) != _texts(after):
            yield _major(name, f"has other {what}: {', '.join(_texts(after)) or 'none'}")
    old_fields, new_fields = _members(old, ast.AnnAssign), _members(new, ast.AnnAssign)
    yield from _compare_fields(name, old, old_fields, new_fields)
    old_methods, new_methods = _members(old, ast.FunctionDef), _members(new, ast.FunctionDef)
    is_overridden = "ABC" in _texts(old.bases)
    for method, node in old_methods.items():
        if method in new_methods:
            yield from _compare_functions(f"{name}.{method}", node, new_methods[method], is_overridden=is_overridden)
        else:
            yield _major(f"{name}.{method}", "is gone")
    for method, node in new_methods.items():
        if method in old_methods:
            continue
        if "abstractmethod" in _texts(node.decorator_list):
            yield _major(f"{name}.{method}", "is a new abstract method, which no plugin has: give it a body")
        else:
            yield _minor(f"{name}.{method}", "is a new method with a body")


def _compare_fields(
    name: str, node: ast.ClassDef, old: dict[str, ast.AnnAssign], new: dict[str, ast.AnnAssign]
) -> Iterator[Change]:
    for field, before in old.items():
        where = f"{name}.{field}"
        if field not in new:
            yield _major(where, "is gone")
            continue
        yield from _compare_types(where, before.annotation, new[field].annotation)
        yield from _compare_defaults(where, before.value, new[field].value, is_overridden=False)
    added = [field for field in new if field not in old]
    is_tuple = "NamedTuple" in _texts(node.bases)
    for field in added:
        where = f"{name}.{field}"
        if new[field].value is None:
            yield _major(where, "is a new field without a default, which nobody gives: give it one")
        else:
            yield _minor(where, f"is a new field, {_text(new[field].value)} by default")
    by_place = is_tuple or any(
        "dataclass" in text and "kw_only=True" not in text for text in _texts(node.decorator_list)
    )
    kept = [field for field in old if field in new]
    if by_place and list(new)[: len(kept)] != kept:
        yield _major(name, "has its fields, which are given by place, in another order")


# --- functions -------------------------------------------------------------------------------------------------------


class _Parameter(NamedTuple):
    name: str
    annotation: ast.expr | None
    default: ast.expr | None


def _compare_functions(
    name: str, old: ast.FunctionDef, new: ast.FunctionDef, *, is_overridden: bool
) -> Iterator[Change]:
    before, after = _texts(old.decorator_list), _texts(new.decorator_list)
    if "abstractmethod" in after and "abstractmethod" not in before:
        yield _major(name, "became abstract, and plugins that inherited it lack it now")
    if "abstractmethod" in before and "abstractmethod" not in after:
        yield _minor(name, "has a body now")
    if [text for text in before if text != "abstractmethod"] != [text for text in after if text != "abstractmethod"]:
        yield _major(name, f"has other decorators: {', '.join(after) or 'none'}")
    yield from _compare_types(f"{name}'s result", old.returns, new.returns)
    old_places, new_places = _positional(old.args), _positional(new.args)
    for place, parameter in enumerate(old_places):
        if place >= len(new_places) or new_places[place].name != parameter.name:
            yield _major(name, f"has lost its parameter {parameter.name!r}, or has it under another name or elsewhere")
            return
    old_names, new_names = _keywords(old.args), _keywords(new.args)
    for lost in old_names.keys() - new_names.keys():
        yield _major(name, f"has lost its parameter {lost!r}, or has it under another name")
    pairs = [
        *zip(old_places, new_places, strict=False),
        *((old_names[k], new_names[k]) for k in old_names.keys() & new_names),
    ]
    for one, other in pairs:
        where = f"{name}'s parameter {one.name!r}"
        yield from _compare_types(where, one.annotation, other.annotation)
        yield from _compare_defaults(where, one.default, other.default, is_overridden=is_overridden)
    added = [*new_places[len(old_places) :], *(new_names[k] for k in new_names.keys() - old_names.keys())]
    for parameter in added:
        if is_overridden:
            yield _major(
                name,
                f"has a new parameter {parameter.name!r}, which overrides do not take: make it a method of its own",
            )
        elif parameter.default is None:
            yield _major(name, f"has a new parameter {parameter.name!r} without a default: give it one")
        else:
            yield _minor(name, f"has a new parameter {parameter.name!r}, {_text(parameter.default)} by default")
    if [_text(old.args.vararg), _text(old.args.kwarg)] != [_text(new.args.vararg), _text(new.args.kwarg)]:
        yield _major(name, "takes another * or ** parameter")


def _positional(arguments: ast.arguments) -> list[_Parameter]:
    names = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(names) - len(arguments.defaults)) + [*arguments.defaults]
    return [_Parameter(name.arg, name.annotation, default) for name, default in zip(names, defaults, strict=True)]


def _keywords(arguments: ast.arguments) -> dict[str, _Parameter]:
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return {name.arg: _Parameter(name.arg, name.annotation, default) for name, default in pairs}


# --- types and values ------------------------------------------------------------------------------------------------


def _compare_types(where: str, old: ast.expr | None, new: ast.expr | None) -> Iterator[Change]:
    if _text(old) == _text(new):
        return
    if _is_widened(old, new):
        yield _minor(where, f"was {_text(old)} and may be more now: {_text(new)}")
    else:
        yield _major(where, f"was {_text(old)} and is {_text(new)}")


def _compare_defaults(
    where: str, old: ast.expr | None, new: ast.expr | None, *, is_overridden: bool
) -> Iterator[Change]:
    if _text(old) == _text(new):
        return
    if new is None:
        yield _major(where, f"has no default any more; it was {_text(old)}")
    elif old is None and is_overridden:
        yield _major(where, f"may be left out now, which overrides do not expect ({_text(new)} by default)")
    elif old is None:
        yield _minor(where, f"may be left out now: {_text(new)} by default")
    else:
        yield _major(where, f"means another thing to who leaves it out: {_text(new)} instead of {_text(old)}")


class _Literals(ast.NodeTransformer):
    """Take the values out of every ``Literal[…]``."""

    def __init__(self) -> None:
        self.values: list[set[str]] = []

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if _text(node.value) != "Literal":
            return self.generic_visit(node)
        self.values.append(set(_texts(node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice])))
        return node.value


def _is_widened(old: ast.expr | None, new: ast.expr | None) -> bool:
    """Tell whether two types differ by values that the new one's ``Literal`` has besides."""
    if old is None or new is None or _text(old) == _text(new):
        return False
    values, rests = [], []
    for expression in (old, new):
        taken = _Literals()
        rests.append(_text(taken.visit(ast.parse(_text(expression), mode="eval"))))
        values.append(taken.values)
    return rests[0] == rests[1] and all(before <= after for before, after in zip(*values, strict=True))


def _gains(old: Any, new: Any) -> bool:
    """Tell whether a tuple or dictionary has everything it had, and more."""
    if isinstance(old, tuple) and isinstance(new, tuple):
        return set(old) < set(new)
    return isinstance(old, dict) and isinstance(new, dict) and old.items() < new.items()


def _constant(node: ast.expr | None) -> Any:
    try:
        return ast.literal_eval(_text(node))
    except (ValueError, SyntaxError):
        return None


def _members(node: ast.ClassDef, kind: type[Any]) -> dict[str, Any]:
    return {_name(member): member for member in node.body if isinstance(member, kind)}


def _name(node: ast.stmt) -> str:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
            return name
        case ast.AnnAssign(target=target):
            return ast.unparse(target)
        case ast.Assign(targets=[target]):
            return ast.unparse(target)
    raise ValueError(f"An interface's text holds no such line: {ast.unparse(node)}")


def _text(node: ast.AST | None) -> str:
    return "" if node is None else ast.unparse(node)


def _texts(nodes: Sequence[ast.AST] | Iterable[ast.AST]) -> list[str]:
    return [ast.unparse(node) for node in nodes]


def _minor(where: str, what: str) -> Change:
    return Change("minor", f"{where} {what}.")


def _major(where: str, what: str) -> Change:
    return Change("major", f"{where} {what}.")
