"""Reading JSON files as people's editors and converters leave them."""

import json
from pathlib import Path
from typing import Any

from pageport.errors import CorruptWeights


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON object, with or without a byte order mark, whatever its line ends.

    Raises:
        CorruptWeights: not UTF-8, not JSON, or not an object; names the file and the place.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise CorruptWeights(f"{path} is not valid JSON ({error}). Fetch the file again.") from error
    if not isinstance(content, dict):
        raise CorruptWeights(f"{path} holds a JSON {type(content).__name__}; an object is needed. Fetch it again.")
    return content
