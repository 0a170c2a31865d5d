"""``pageport backends explain`` looks at the device that options and ``--simulate`` ask for."""

import pytest
from typer.testing import CliRunner, Result

from pageport.cli.app import app
from pageport.errors import ConfigurationError, PageportError, UnsupportedFeature


def explain(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["backends", "explain", *arguments], env={"COLUMNS": "200"})


def test_a_simulated_device_shows_its_programs_with_the_options_it_was_given() -> None:
    output = explain("neuron", "--simulate", "--backend-option", "token_buckets=7,70").output
    assert "simulated on the host" in output
    assert "7, 70 tokens" in output


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("cpu", "--simulate"), UnsupportedFeature, "cpu cannot be simulated"),
        (("cpu", "--backend-option", "kernels"), ConfigurationError, "'kernels' is no key=value pair"),
        (("cpu", "--backend-option", "colour=red"), ConfigurationError, "colour"),
    ],
)
def test_what_cannot_be_shown_is_refused(arguments: tuple[str, ...], error: type[PageportError], message: str) -> None:
    result = explain(*arguments)
    assert isinstance(result.exception, error)
    assert message in str(result.exception)
