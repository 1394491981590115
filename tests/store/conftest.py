"""One PostgreSQL server for all tests of what lies in a database."""

import pytest

from store import postgres


@pytest.fixture(scope="session")
def server():
    found = postgres.binaries()
    if found is None:
        pytest.skip("PostgreSQL is not installed: the store is tested on SQLite alone")
    with postgres.running(found) as server:
        yield server
