"""``StructuredOutput``: the form that a request's output must have. No torch, no grammar library here."""

from dataclasses import dataclass, field

# The fields of which exactly one is given.
KINDS = ("json_schema", "json_object", "regex", "choice", "grammar")


@dataclass(frozen=True, kw_only=True)
class StructuredOutput:
    """Exactly one of the first five; every complete output of the request is then one of the texts it describes.

    JSON is compact: between its tokens stands at most one space, and with ``allows_whitespace`` off none.
    """

    json_schema: str | None = None  # a JSON Schema, as JSON text
    json_object: bool = False  # any JSON object
    regex: str | None = None  # matches the whole output
    choice: tuple[str, ...] | None = None
    grammar: str | None = None  # in Lark's syntax as llguidance reads it; the output derives from ``start``
    allows_whitespace: bool = True
    parameter: str = field(default="structured", compare=False)  # what errors call it: the field a client sent

    @property
    def given(self) -> tuple[str, ...]:
        """The names of the kinds that are given."""
        return tuple(kind for kind in KINDS if getattr(self, kind) not in (None, False))
