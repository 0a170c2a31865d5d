"""What `make test` leaves to `make test-all` here."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the level that measures: beside other tests its figures say nothing."""
    for item in items:
        if item.name == "test_conformance[performance]":
            item.add_marker(pytest.mark.full)
