"""Command-line options made from the configuration dataclasses: a setting is declared once."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, fields
from functools import wraps
from typing import Annotated, Any, get_origin, get_type_hints

import typer
from typer.models import OptionInfo

from pageport.cli.config_file import ConfigFile, FileOption


def with_settings(
    *configs: type, positional_model: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one option for each field of ``configs``; it receives them as keyword arguments.

    ``--config FILE`` reads them, and the command's own options, from a YAML file; what the command line says wins.
    With ``positional_model`` the model may also be the first argument, as in ``vllm serve MODEL``.
    """
    parameters = [_parameter(config, field) for config in configs for field in fields(config)]
    repeatable = [parameter.name for parameter in parameters if parameter.annotation == list[str]]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command).parameters.values())[:-1]  # the last one is **settings
        file_options = [option for parameter in own + parameters if (option := _file_option(parameter)) is not None]
        added = [_keyword("context", typer.Context), _config_parameter()]
        if positional_model:
            argument = typer.Argument(None, help="Same as --model.", show_default=False)
            added.append(_keyword("model_argument", str | None, argument))

        @wraps(command)
        def with_model(*args: Any, context: typer.Context, config: str | None, **settings: Any) -> None:
            is_given = {name for name in settings if _is_given(context, name)}
            model = settings.pop("model_argument", None)
            if model is not None:
                settings["model"] = model
                is_given.add("model")
            if config is not None:
                read = ConfigFile(config).settings(file_options)
                settings |= {name: value for name, value in read.items() if name not in is_given}
            command(*args, **settings | {name: tuple(settings[name]) for name in repeatable})

        as_keywords = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in added + own + parameters]
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
    return _keyword(field.name, annotation, option)


def _config_parameter() -> inspect.Parameter:
    text = "YAML file whose keys are options of this command; the command line wins."
    return _keyword("config", str | None, typer.Option(None, "--config", metavar="FILE", help=text))


def _keyword(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _file_option(parameter: inspect.Parameter) -> FileOption | None:
    """Return what a file may say for a parameter; None for arguments."""
    is_annotated = get_origin(parameter.annotation) is Annotated
    declared = parameter.annotation.__metadata__ if is_annotated else [parameter.default]
    for option in declared:
        if isinstance(option, OptionInfo):
            return FileOption(parameter.name, tuple(_spellings(parameter.name, option)), parameter.annotation)
    return None


def _spellings(name: str, option: OptionInfo) -> Iterable[str]:
    # Within an annotation, typer keeps the first spelling where otherwise the default stands.
    written = [option.default, *(option.param_decls or ())]
    spelled = [text for text in written if isinstance(text, str) and text.startswith("--")]
    return [text.split("/")[0].removeprefix("--") for text in spelled or [name.replace("_", "-")]]


def _is_given(context: typer.Context, name: str) -> bool:
    """Does the command line, and no default, say this?"""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _panel(config: type) -> str:
    return config.__name__.removesuffix("Config")
