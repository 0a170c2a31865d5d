"""The log of a process of ours."""

import logging
import os


def open_log() -> None:
    """Write to stderr what is at least as grave as ``PAGEPORT_LOG_LEVEL`` (default: INFO)."""
    logging.basicConfig(level=os.environ.get("PAGEPORT_LOG_LEVEL", "INFO"), format="%(levelname)s %(message)s")
