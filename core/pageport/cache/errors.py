"""Errors of the block accounting: a caller's bookkeeping went wrong, no user can cause them."""

from pageport.errors import PageportError


class UnknownSequence(PageportError):
    """No open sequence has this id: it was never opened, or is freed already."""

    def __init__(self, sequence_id: int) -> None:
        super().__init__(f"sequence {sequence_id} owns no blocks: it was never opened or is freed already")
        self.sequence_id = sequence_id
