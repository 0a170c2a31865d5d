"""``BatchOutput``: the file of answers, a line for each request, in the order in which they are finished."""

import json
import os
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple

from pageport.batch_file.batch_line import BatchLine
from pageport.batch_file.in_process_client import InProcessAnswer
from pageport.errors import ConfigurationError


class _Finished(NamedTuple):
    custom_id: str
    status: int


class BatchOutput:
    """Appends to the file; each line is written out at once, so that a run that is broken off loses none."""

    def __init__(self, path: Path, *, resumes: bool) -> None:
        """Open the file.

        Args:
            resumes: keep the answers that are there, but for failures of the server, which are asked for again.

        Raises:
            ConfigurationError: it has content and ``resumes`` is not set, or it cannot be written.
        """
        self.num_failed = 0
        self.finished_ids: frozenset[str] = frozenset()  # answered in an earlier run
        self._path = path
        try:
            if path.exists() and path.stat().st_size:
                if not resumes:
                    raise ConfigurationError(
                        f"{path} has content already. Continue it with --resume, or name another file."
                    )
                statuses = _keep_finished(path)
                self.finished_ids = frozenset(statuses)
                self.num_failed = sum(status >= 400 for status in statuses.values())
            self._file: IO[str] = path.open("a", encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be written: {error.strerror}.") from error

    def __enter__(self) -> "BatchOutput":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def write_answer(self, line: BatchLine, answer: InProcessAnswer) -> None:
        """Write what a request was answered with, be it an error."""
        self.num_failed += answer.status >= 400
        response = {"status_code": answer.status, "request_id": answer.request_id, "body": json.loads(answer.body)}
        self._write(line, response, None)

    def write_problem(self, line: BatchLine) -> None:
        """Write that a line could not be sent."""
        self.num_failed += 1
        error = {
            "message": f"Line {line.number}: {line.problem}",
            "type": "invalid_request_error",
            "param": None,
            "code": "invalid_line",
        }
        self._write(line, None, error)

    def _write(self, line: BatchLine, response: dict[str, Any] | None, error: dict[str, Any] | None) -> None:
        entry = {
            "id": f"batch_req_{line.number}",
            "custom_id": line.custom_id,
            "response": response,
            "error": error,
        }
        try:
            self._file.write(json.dumps(entry, ensure_ascii=False) + "\n")
            self._file.flush()
        except OSError as error_of_disk:
            raise ConfigurationError(f"{self._path} cannot be written: {error_of_disk.strerror}.") from error_of_disk


def _keep_finished(path: Path) -> dict[str, int]:
    """Rewrite the file without failures of the server and what was cut off; return the status by id that stays."""
    kept: dict[str, str] = {}
    statuses: dict[str, int] = {}
    with path.open(encoding="utf-8", errors="replace") as file:
        for text in file:
            finished = _finished(text)
            if finished is not None:
                kept[finished.custom_id] = text
                statuses[finished.custom_id] = finished.status
    whole = path.with_name(path.name + ".resuming")
    with whole.open("w", encoding="utf-8") as file:
        file.writelines(kept.values())
    os.replace(whole, path)  # noqa: PTH105 - the one call that is known to be atomic
    return statuses


def _finished(text: str) -> _Finished | None:
    """Read an answer that need not be asked for again."""
    try:
        entry = json.loads(text)
        finished = _Finished(entry["custom_id"], int(entry["response"]["status_code"]))
    except (ValueError, LookupError, TypeError):
        return None
    is_whole = text.endswith("\n") and isinstance(finished.custom_id, str)
    return finished if is_whole and finished.status < 500 else None
