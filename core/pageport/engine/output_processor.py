"""``OutputProcessor``: the one way from the engine's tokens to text, whoever asked."""

from collections.abc import Iterable

from pageport.engine.messages import EngineRequest, SequenceOutput
from pageport.engine.outputs import ChoiceDelta, RequestOutput
from pageport.engine.request_state import RequestState
from pageport.errors import InvalidParameter
from pageport.text.tokenizer import Tokenizer


class OutputProcessor:
    """Keeps the state of every request that runs, and turns engine outputs into deltas of text.

    The owner adds a request before the engine gets it, aborts what ``take_aborts`` names, and forgets the request.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._states: dict[str, RequestState] = {}
        self._aborts: list[tuple[str, int]] = []

    def add(self, request: EngineRequest, prompt_text: str | None = None) -> RequestState:
        """Expect outputs of ``request``; ``prompt_text`` is for its results only.

        Raises:
            InvalidParameter: a request of this id runs.
        """
        if request.request_id in self._states:
            raise InvalidParameter(f"A request {request.request_id!r} runs already. Choose another id.", "request_id")
        state = self._states[request.request_id] = RequestState(request, prompt_text, self._tokenizer)
        return state

    def process(self, outputs: Iterable[SequenceOutput]) -> list[ChoiceDelta]:
        """Return what is new; outputs of forgotten requests and ended choices are dropped."""
        deltas: list[ChoiceDelta] = []
        for output in outputs:
            state = self._states.get(output.request_id)
            if state is None:
                continue
            had_ended = state.ended_by_text(output.index)
            deltas += state.take(output)
            if output.finish_reason is None and not had_ended and state.ended_by_text(output.index):
                self._aborts.append((output.request_id, output.index))
        return deltas

    def take_aborts(self) -> list[tuple[str, int]]:
        """Return, once, the sequences (request id, index) that a stop string ended: the engine should drop them."""
        aborts, self._aborts = self._aborts, []
        return aborts

    def is_finished(self, request_id: str) -> bool:
        """Whether every choice has ended; true of a request that is not known (any more)."""
        state = self._states.get(request_id)
        return state is None or state.is_finished

    @property
    def num_open_choices(self) -> int:
        """Choices of all requests that have not ended."""
        return sum(state.num_open_choices for state in self._states.values())

    def snapshot(self, request_id: str) -> RequestOutput:
        """Return everything so far of a request that was added."""
        return self._states[request_id].snapshot()

    def forget(self, request_id: str) -> None:
        """Drop a request's state; unknown ids are fine."""
        self._states.pop(request_id, None)
