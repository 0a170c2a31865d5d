"""The pluggy hook through which a distribution offers its backends (entry-point group ``pageport.backends``)."""

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from pageport.backend.interface import Backend

GROUP = "pageport.backends"
hookspec = pluggy.HookspecMarker("pageport")
hookimpl = pluggy.HookimplMarker("pageport")


@hookspec
def pageport_backends() -> "list[type[Backend]]":
    """Return the backend classes this plugin brings; import nothing heavy here."""
    raise NotImplementedError
