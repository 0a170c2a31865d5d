"""``NeuronOptions``: what ``--backend-option`` says to this backend; imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from pageport.errors import ConfigurationError, UnsupportedFeature

Sampling = Literal["host", "device"]


@dataclass(frozen=True, kw_only=True)
class NeuronOptions:
    """Each field is an option; a program is compiled for every combination of sizes that the engine can need."""

    # Tokens of one prompt in a step; longer prompts take several steps.
    token_buckets: tuple[int, ...] = (128, 512, 2048)
    # Decodes in a step.
    request_buckets: tuple[int, ...] = (1, 8, 32)
    # Tokens that a context may have. Empty: one size, the longest context that is served.
    context_buckets: tuple[int, ...] = ()
    # Who draws tokens: "host" from logits, exactly; "device" in the program, in as many bits as the compiler leaves.
    # Requests with temperature 0 are always served by the program.
    sampling: Sampling = "host"
    # Where compiled programs are kept; None: where the vendor's libraries keep them.
    cache_dir: Path | None = None
    # What to compile for where no device is there to ask, as the compiler's --target takes it.
    target: str = "trn2"

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "NeuronOptions":
        """Read the options.

        Raises:
            ConfigurationError: one is misspelt, or has a value that it does not take.
            UnsupportedFeature: a tensor parallel degree other than 1.
        """
        settings: dict[str, object] = {}
        for name, value in options.items():
            if name == "tensor_parallel_degree":
                _check_degree(value)
            elif name.endswith("_buckets") and name in _NAMES:
                settings[name] = _sizes(name, value)
            elif name == "sampling":
                if value not in ("host", "device"):
                    raise ConfigurationError(f"sampling is {value!r}; use host or device.")
                settings[name] = value
            elif name == "cache_dir":
                settings[name] = Path(value).expanduser()
            elif name == "target":
                settings[name] = value
            else:
                known = ", ".join((*_NAMES, "tensor_parallel_degree"))
                raise ConfigurationError(f"The neuron backend has no option {name!r}. It has {known}.")
        return cls(**settings)  # type: ignore[arg-type]


_NAMES = tuple(field.name for field in fields(NeuronOptions))


def _sizes(name: str, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ConfigurationError(f"{name} is {text!r}; write positive whole numbers with commas between: 128,512.")
    sizes = tuple(sorted({int(part) for part in parts}))
    if not sizes and name != "context_buckets":
        raise ConfigurationError(f"{name} is empty; write at least one size.")
    return sizes


def _check_degree(value: str) -> None:
    if value != "1":
        raise UnsupportedFeature(
            f"tensor_parallel_degree is {value}; the neuron backend runs a model on one core, because collectives "
            "inside compiled programs cannot be checked without the device. Leave it at 1."
        )
