"""Find JSON Schemas that no finite value satisfies, because they need themselves."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

# Keywords whose value is applied to the same value as the schema that has them.
_ALL_OF, _ANY_OF = ("allOf",), ("anyOf", "oneOf")


class SchemaRecursion:
    """Which of the schemas in one document have a finite value; ``True`` where it cannot be told.

    A least fixed point: at first none is known to, and each pass adds those whose needs are met by now. Schemas are
    told apart by identity, so the document must outlive this.
    """

    def __init__(self, document: Any) -> None:
        self._document = document
        self._is_finite: dict[int, bool] = {}
        order = self._children_first()
        is_changing = True
        while is_changing:
            is_changing = False
            for schema in order:
                if not self._is_finite[id(schema)] and self._is_met(schema):
                    self._is_finite[id(schema)] = is_changing = True

    @property
    def is_endless(self) -> bool:
        """Does every value of the document contain another one of the same kind?"""
        return not self._is_known_finite(self._document)

    def _children_first(self) -> list[dict[str, Any]]:
        """List what the document's value depends on, with as few schemas as possible before their needs."""
        order: list[dict[str, Any]] = []
        stack: list[tuple[Any, Iterator[Any] | None]] = [(self._document, None)]
        while stack:
            schema, needs = stack.pop()
            if needs is None:
                if not isinstance(schema, dict) or id(schema) in self._is_finite:
                    continue
                self._is_finite[id(schema)] = False
                needs = self._needs(schema)
            following = next(needs, _END)
            if following is _END:
                order.append(schema)
            else:
                stack += [(schema, needs), (following, None)]
        return order

    def _needs(self, schema: dict[str, Any]) -> Iterator[Any]:
        if "$ref" in schema:
            yield self._target(schema["$ref"])
        for keyword in _ALL_OF + _ANY_OF:
            yield from _list(schema.get(keyword))
        yield from self._parts(schema)

    def _is_met(self, schema: dict[str, Any]) -> bool:
        """Has ``schema`` a finite value, as far as is known of what it needs?"""
        if "enum" in schema or "const" in schema:
            return True
        if "$ref" in schema and not self._is_known_finite(self._target(schema["$ref"])):
            return False
        if not all(self._is_known_finite(part) for part in _list(schema.get("allOf"))):
            return False
        for keyword in _ANY_OF:
            options = _list(schema.get(keyword))
            if options and not any(self._is_known_finite(option) for option in options):
                return False
        return all(self._is_known_finite(part) for part in self._parts(schema))

    def _parts(self, schema: dict[str, Any]) -> Iterator[Any]:
        """Yield the schemas of what every value contains, where all values are of one kind that contains others."""
        kind = schema.get("type")
        if isinstance(kind, list) and len(kind) == 1:
            kind = kind[0]
        properties = schema.get("properties")
        if kind == "object" and isinstance(properties, dict):
            for name in _list(schema.get("required")):
                if isinstance(name, str) and name in properties:
                    yield properties[name]
        count = schema.get("minItems", 0)
        if kind == "array" and isinstance(count, int) and count > 0:
            first = _list(schema.get("prefixItems"))
            yield from first[:count]
            if count > len(first):
                yield schema.get("items", True)

    def _is_known_finite(self, schema: Any) -> bool:
        return self._is_finite[id(schema)] if isinstance(schema, dict) else True

    def _target(self, reference: Any) -> Any:
        """Follow a pointer within the document; ``True`` for any other: the compiler says what is wrong with it."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            return True
        place: Any = self._document
        for step in unquote(reference[1:]).split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if isinstance(place, dict) and key in place:
                place = place[key]
            elif isinstance(place, list) and key.isdecimal() and int(key) < len(place):
                place = place[int(key)]
            else:
                return True
        return place


_END = object()


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
