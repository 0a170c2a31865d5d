"""Every error pageport raises on purpose.

    PageportError
    ├── ConfigurationError        a setting is wrong or settings contradict each other
    ├── RequestError              one request is wrong: HTTP 400
    │   ├── InvalidParameter      a field has an impossible value (names the field)
    │   └── RequestTooLong        the context or the KV cache cannot hold it
    ├── EngineOverloaded          the queue is full: HTTP 503
    ├── EngineDead                the engine process is gone: HTTP 503
    ├── ModelError                a model cannot be used
    │   ├── ModelNotFound         no such file, folder or hub id here
    │   ├── UnsupportedModel      architecture, rope scaling, tokenizer kind… not known
    │   └── CorruptWeights        missing, truncated, extra or misshapen tensors
    └── BackendError              a backend cannot be used
        ├── BackendUnavailable    not installed, no such device, plugin broken
        ├── UnsupportedFeature    the backend does not declare what was asked of it
        └── OutOfMemory           does not fit: carries the arithmetic

A message says what was wrong, the value seen and what to do.
"""


class PageportError(Exception):
    """Root of the tree."""


class ConfigurationError(PageportError):
    """A setting is wrong or two settings contradict each other."""


class RequestError(PageportError):
    """One request cannot be served as sent; nothing else is affected."""

    def __init__(self, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter

    def __reduce__(self) -> tuple[type["RequestError"], tuple[str, str | None]]:
        return type(self), (str(self), self.parameter)  # errors cross from the engine's process


class InvalidParameter(RequestError):
    """A request field has an impossible value; ``parameter`` names it."""


class RequestTooLong(RequestError):
    """Prompt and output do not fit in the context or in the KV cache."""


class EngineOverloaded(PageportError):
    """The waiting queue is full."""


class EngineDead(PageportError):
    """The engine process ended; the message carries its last words."""


class ModelError(PageportError):
    """A model cannot be used."""


class ModelNotFound(ModelError):
    """No such model here."""


class UnsupportedModel(ModelError):
    """The model needs something pageport does not implement."""


class CorruptWeights(ModelError):
    """A weight file is missing, truncated or does not hold what the model needs."""


class BackendError(PageportError):
    """A backend cannot be used."""


class BackendUnavailable(BackendError):
    """The backend is not installed, broken, or has no device here."""


class UnsupportedFeature(BackendError):
    """The backend does not declare what was asked of it."""


class OutOfMemory(BackendError):
    """Model or cache do not fit; the message carries the arithmetic and what would fit."""
