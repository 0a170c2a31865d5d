"""From the fields that ask for a form of the output to one ``StructuredOutput``."""

import json
from typing import Any

from pageport.errors import InvalidParameter
from pageport.sampling.structured import StructuredOutput
from pageport.server.errors import quote
from pageport.server.protocol.common import GenerationFields, ResponseFormat, StructuredOutputs


def structured_output(body: GenerationFields) -> StructuredOutput | None:
    """Return the form that ``body`` asks for, if any.

    Raises:
        InvalidParameter: two fields ask for one, or one asks for none or several.
    """
    asked = [form for form in (_of_format(body), _of_outputs(body), *_of_guides(body)) if form is not None]
    if len(asked) > 1:
        raise InvalidParameter(
            f"{asked[1].parameter} and {asked[0].parameter} both give the form of the output. Leave one of them out.",
            asked[1].parameter,
        )
    return asked[0] if asked else None


def _of_format(body: GenerationFields) -> StructuredOutput | None:
    name, asked = "response_format", body.response_format
    if asked is None:
        return None
    if asked.json_schema is not None and asked.type != "json_schema":
        raise InvalidParameter(
            f"{name} has a json_schema but the type {quote(asked.type)}. Set the type to 'json_schema'.", name
        )
    match asked.type:
        case "text":
            return None
        case "json_object":
            return StructuredOutput(json_object=True, parameter=name)
        case "json_schema":
            return StructuredOutput(json_schema=_schema_of(asked), parameter=name)


def _schema_of(asked: ResponseFormat) -> str:
    if asked.json_schema is None:
        raise InvalidParameter(
            "response_format of type 'json_schema' needs json_schema, with a name and a schema.", "response_format"
        )
    schema = asked.json_schema.schema_
    # As OpenAI has it, a format without a schema takes any object.
    return json.dumps({"type": "object"} if schema is None else schema)


def _of_outputs(body: GenerationFields) -> StructuredOutput | None:
    name, asked = "structured_outputs", body.structured_outputs
    if asked is None:
        return None
    _refuse_unknown(name, asked)
    return StructuredOutput(
        json_schema=None if asked.json_ is None else _schema_text(asked.json_),
        json_object=bool(asked.json_object),
        regex=asked.regex,
        choice=None if asked.choice is None else tuple(asked.choice),
        grammar=asked.grammar,
        allows_whitespace=not asked.disable_any_whitespace,
        parameter=name,
    )


def _of_guides(body: GenerationFields) -> list[StructuredOutput]:
    forms: list[dict[str, Any]] = []
    if body.guided_json is not None:
        forms.append({"parameter": "guided_json", "json_schema": _schema_text(body.guided_json)})
    if body.guided_regex is not None:
        forms.append({"parameter": "guided_regex", "regex": body.guided_regex})
    if body.guided_choice is not None:
        forms.append({"parameter": "guided_choice", "choice": tuple(body.guided_choice)})
    if body.guided_grammar is not None:
        forms.append({"parameter": "guided_grammar", "grammar": body.guided_grammar})
    return [StructuredOutput(**form) for form in forms]


def _schema_text(schema: dict[str, Any] | bool | str) -> str:
    """Return a schema as text, which it may be already."""
    return schema if isinstance(schema, str) else json.dumps(schema)


def _refuse_unknown(name: str, asked: StructuredOutputs) -> None:
    for key, value in (asked.model_extra or {}).items():
        if value:
            raise InvalidParameter(f"{name} has {quote(key)}, which is not supported. Leave it out.", name)
