"""What must be in the process's environment before torch and a device's libraries are first loaded."""

import os

from pageport.backend.discovery import discover, select
from pageport.backend.interface import Backend


def prepare_environment(backend: str) -> None:
    """Set what the backend ``--backend`` names asks for, unless the user has set it.

    Too late, and harmless, where torch is loaded already.

    Raises:
        BackendUnavailable: as ``select``.
    """
    set_environment(select(discover(), backend).backend)


def set_environment(backend: type[Backend]) -> None:
    """Set what a backend asks for, unless the user has set it."""
    for name, value in backend.environment.items():
        os.environ.setdefault(name, value)
