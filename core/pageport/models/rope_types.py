"""The ways of scaling a rotary embedding that are known here."""

from pageport.errors import UnsupportedModel

ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


def check_rope_type(kind: object) -> None:
    """Refuse another way than those known.

    Raises:
        UnsupportedModel: names it.
    """
    if kind not in ROPE_TYPES:
        raise UnsupportedModel(
            f"The model scales its rotary embedding by {kind!r}, which is unknown here. Known: {', '.join(ROPE_TYPES)}."
        )
