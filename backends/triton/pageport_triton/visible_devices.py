"""``count_visible``: how many devices a variable such as ``CUDA_VISIBLE_DEVICES`` leaves."""

from collections.abc import Sequence


def count_visible(setting: str | None, identities: Sequence[str]) -> int:
    """Count the entries of ``setting`` up to the first that names no device, as drivers do.

    Args:
        setting: comma-separated places or beginnings of identities; None: all are visible.
        identities: one a device, in the driver's order.
    """
    if setting is None:
        return len(identities)
    count = 0
    for entry in (part.strip() for part in setting.split(",")):
        if not _names_one(entry, identities):
            break
        count += 1
    return count


def _names_one(entry: str, identities: Sequence[str]) -> bool:
    if entry.isdecimal():
        return int(entry) < len(identities)
    # A slice of a device has an identity of its own, which nobody lists.
    return entry.startswith("MIG-") or bool(entry and any(known.startswith(entry) for known in identities))
