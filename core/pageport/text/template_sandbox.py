"""``TemplateSandbox``: the Jinja environment that chat templates run in.

A chat template comes with model files, or with a request, and is not trusted: it reaches no Python internals (jinja2's
sandbox), changes nothing it is given (the immutable one), and cannot run or grow without end (a budget).
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Environment, Template, nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

# What one call costs in loop turns: calls are slower.
_CALL_STEPS = 8
_MAX_NUMBER_BITS = 100_000
_LIST_ITEM_CHARACTERS = 8  # a list's item takes as much memory as this many characters
# No template can name this variable: it has a space.
_BUDGET = "render budget"
_GROWING = (
    "center",
    "ljust",
    "rjust",
    "zfill",
    "expandtabs",
    "indent",
    "batch",
    "slice",
    "wordwrap",
    "format",
    "round",
)
_MAX_ARGUMENT = 1_000_000
_LONG_WIDTH = re.compile(r"\d{7,}")


class RenderBudget:
    """What one rendering may use: steps (loop turns, and calls at a higher price), and characters.

    Far above what a conversation of thousands of messages needs, and used up within seconds.
    """

    def __init__(self, steps: int = 2_000_000, characters: int = 32_000_000) -> None:
        self._limits = (steps, characters)
        self._steps = steps
        self._characters = characters

    def spend(self, steps: int, characters: int) -> None:
        """Count work done.

        Raises:
            SecurityError: more than the budget.
        """
        self._steps -= steps
        self._characters -= characters
        if self._steps < 0:
            raise SecurityError(f"it ran for more than {self._limits[0]} steps")
        if self._characters < 0:
            raise SecurityError(f"it wrote more than {self._limits[1]} characters")

    def admit(self, size: int) -> None:
        """Refuse one value of ``size`` characters where that is more than a whole rendering may write."""
        if size > self._limits[1]:
            raise SecurityError(f"it makes a value of {size} characters; the limit is {self._limits[1]}")

    def admit_number(self, bits: int) -> None:
        """Refuse an integer of more than ``_MAX_NUMBER_BITS``."""
        if bits > _MAX_NUMBER_BITS:
            raise SecurityError(f"it makes a number of {bits} bits; the limit is {_MAX_NUMBER_BITS}")


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """What transformers offers to templates, within a budget."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols], finalize=_count_output
        )
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda format: now().strftime(format)  # noqa: A006 - templates name it
        self.globals["namespace"] = TemplateNamespace
        del self.globals["lipsum"]
        self.filters["tojson"] = _tojson
        for name in (*_GROWING, "replace", "join"):
            if name in self.filters:
                self.filters[name] = _guarded(name, self.filters[name])
        self.filters["counted turns"] = _counted_turns
        self.filters["counted text"] = _counted_text

    def prepare(self, source: str) -> Template:
        """Compile a template, with its loops and joins counted.

        Raises:
            TemplateError: it is not a template.
        """
        tree = self.parse(source)
        for loop in list(tree.find_all(nodes.For)):
            static = sum(len(data.data) for data in loop.find_all(nodes.TemplateData))
            loop.iter = _filter(loop.iter, "counted turns", nodes.Const(static))
        for parent in [tree, *tree.find_all(nodes.Node)]:
            _wrap_joins(parent)
        tree.set_environment(self)
        return Template.from_code(self, self.compile(tree), self.make_globals(None))

    def run(self, template: Template, variables: Mapping[str, Any], budget: RenderBudget) -> str:
        """Render with ``variables``.

        Raises:
            TemplateError: the template refuses, breaks a rule of the sandbox or uses up its budget.
        """
        return template.render({**variables, _BUDGET: budget})

    def call(self, context: Context, callee: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Count calls, of macros too, and refuse those that would make something huge."""
        budget = _budget(context)
        budget.spend(_CALL_STEPS, 0)
        # jinja2 hands out a wrapper of str.format.
        method = getattr(callee, "__wrapped__", callee)
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            _refuse_growth(budget, method.__name__, owner, args, kwargs)
        return super().call(context, callee, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse numbers and texts that grow by doubling."""
        budget = _budget(context)
        if operator == "%" and isinstance(left, str):
            _refuse_growth(budget, "format", left, (right,), {})
        elif operator == "*":
            _refuse_product(budget, left, right)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            budget.admit_number(left.bit_length() * abs(right))
        elif operator == "+":
            budget.admit(_size(left) + _size(right))
        return super().call_binop(context, operator, left, right)


class GenerationTag(Extension):
    """``{% generation %}…{% endgeneration %}`` marks the assistant's part for training; here it renders its body."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class TemplateNamespace(Namespace):
    """``namespace(...)`` without underscored names, which lead to Python's internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # as jinja2's, so that namespace(self=…) works
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _refuse_underscored(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscored(name)
        super().__setitem__(name, value)


def _refuse_underscored(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"it stores the underscored name {name!r} in a namespace")


def _raise_exception(message: Any) -> NoReturn:
    raise TemplateError(str(message))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own escapes HTML, which models never saw.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _budget(context: Context) -> RenderBudget:
    budget = context.get(_BUDGET)
    assert isinstance(budget, RenderBudget)
    return budget


@pass_context
def _count_output(context: Context, value: Any) -> Any:
    _budget(context).spend(0, len(value) if isinstance(value, str) else 1)
    return value


@pass_context
def _counted_turns(context: Context, values: Iterable[Any], static: int) -> Iterator[Any]:
    budget = _budget(context)
    for value in values:
        budget.spend(1, static)
        yield value


@pass_context
def _counted_text(context: Context, value: str) -> str:
    _budget(context).admit(len(value))
    return value


def _filter(node: nodes.Node, name: str, *args: nodes.Expr) -> nodes.Filter:
    assert isinstance(node, nodes.Expr)
    return nodes.Filter(node, name, list(args), [], None, None, lineno=node.lineno)


def _wrap_joins(parent: nodes.Node) -> None:
    """Check the size of every ``a ~ b``, which jinja2 does not let an environment intercept."""
    for field, value in parent.iter_fields():
        if isinstance(value, nodes.Concat):
            setattr(parent, field, _filter(value, "counted text"))
        elif isinstance(value, list):
            value[:] = [_filter(v, "counted text") if isinstance(v, nodes.Concat) else v for v in value]


def _guarded(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return jinja2's filter behind the check of its arguments."""
    wants_first = getattr(original, "jinja_pass_arg", None) is not None
    wants_context = wants_first and original.jinja_pass_arg.name == "context"  # type: ignore[attr-defined]

    @pass_context
    def guarded(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        _refuse_growth(_budget(context), name, value, args, kwargs)
        if not wants_first:
            return original(value, *args, **kwargs)
        return original(context if wants_context else _first(context, original), value, *args, **kwargs)

    return guarded


def _first(context: Context, original: Callable[..., Any]) -> Environment | Any:
    kind = original.jinja_pass_arg.name  # type: ignore[attr-defined]
    return context.environment if kind == "environment" else context.eval_ctx


def _refuse_growth(
    budget: RenderBudget, name: str, owner: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    values = (*args, *kwargs.values())
    if name in _GROWING and any(isinstance(v, int) and abs(v) > _MAX_ARGUMENT for v in values):
        raise SecurityError(f"it calls {name} with a number over {_MAX_ARGUMENT}")
    if name in ("format", "format_map") and isinstance(owner, str) and _LONG_WIDTH.search(owner):
        raise SecurityError(f"it formats to a width over {_MAX_ARGUMENT}")
    if name == "replace" and len(values) >= 2 and isinstance(owner, str) and isinstance(values[1], str):
        count = owner.count(str(values[0]))
        budget.admit(len(owner) + count * len(values[1]))
    if name == "join":
        parts = args[0] if isinstance(owner, str) and args else owner
        if isinstance(parts, list | tuple):
            separators = len(owner) if parts is not owner else sum(len(v) for v in values if isinstance(v, str))
            budget.admit(sum(len(part) for part in parts if isinstance(part, str)) + len(parts) * separators)


def _refuse_product(budget: RenderBudget, left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        budget.admit_number(left.bit_length() + right.bit_length())
    elif isinstance(left, int):
        budget.admit(left * _size(right))
    elif isinstance(right, int):
        budget.admit(right * _size(left))


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    return len(value) * _LIST_ITEM_CHARACTERS if isinstance(value, list | tuple) else 0
