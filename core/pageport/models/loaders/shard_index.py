"""The index of a model whose weights are in several files."""

from pathlib import Path

from pageport.errors import CorruptWeights
from pageport.models.json_file import read_json_object


def read_shard_index(index: Path) -> dict[str, str]:
    """Return the file of each tensor, by name; all of them are in the index's folder.

    Raises:
        CorruptWeights: the index is damaged or leads out of its folder, or a file is missing.
    """
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise CorruptWeights(f"{index} has no weight_map from tensor names to files. Fetch the file again.")
    shards = sorted(set(weight_map.values()))
    outside = [shard for shard in shards if Path(shard).name != shard]
    if outside:
        raise CorruptWeights(f"{index} names {outside[0]!r}, which is not a file of its folder. Fetch the index again.")
    missing = [shard for shard in shards if not (index.parent / shard).is_file()]
    if missing:
        raise CorruptWeights(
            f"{index.parent}: {', '.join(missing)} of {len(shards)} shards in {index.name} "
            f"{'is' if len(missing) == 1 else 'are'} missing. The download was probably interrupted; fetch it again."
        )
    return weight_map
