import pytest


def pytest_collection_modifyitems(items):
    for item in items:
        if "/learn/" in item.path.as_posix():
            item.add_marker(pytest.mark.learn)
