"""Command-line options made from the configuration dataclasses: a setting is declared once."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from functools import wraps
from typing import Any, get_type_hints

import typer


def with_settings(
    *configs: type, positional_model: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one option for each field of ``configs``; it receives them as keyword arguments.

    With ``positional_model`` the model may also be the first argument, as in ``vllm serve MODEL``.
    """
    parameters = [_parameter(config, field) for config in configs for field in fields(config)]
    repeatable = [parameter.name for parameter in parameters if parameter.annotation == list[str]]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command).parameters.values())[:-1]  # the last one is **settings
        if positional_model:
            argument = typer.Argument(None, help="Same as --model.", show_default=False)
            kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
            own.insert(0, inspect.Parameter("model_argument", kind, default=argument, annotation=str | None))

        @wraps(command)
        def with_model(*args: Any, **settings: Any) -> None:
            model = settings.pop("model_argument", None)
            if model is not None:
                settings["model"] = model
            command(*args, **settings | {name: tuple(settings[name]) for name in repeatable})

        as_keywords = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own + parameters]
        with_model.__signature__ = inspect.Signature(as_keywords)  # type: ignore[attr-defined]
        with_model.__annotations__ = {p.name: p.annotation for p in as_keywords}
        return with_model

    return decorate


def _parameter(config: type, field: Any) -> inspect.Parameter:
    flag = field.name.replace("_", "-")
    annotation = get_type_hints(config)[field.name]
    spelled: Sequence[str] = [f"--{flag}", *field.metadata.get("aliases", ())]
    if annotation is bool:
        spelled = [f"--{flag}/--no-{flag}", *spelled[1:]]
    default = None if field.default is MISSING else field.default
    if getattr(annotation, "__origin__", None) is tuple:
        annotation, default = list[str], list(default or ())
    option = typer.Option(default, *spelled, help=field.metadata.get("help"), rich_help_panel=_panel(config))
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=annotation)


def _panel(config: type) -> str:
    return config.__name__.removesuffix("Config")
