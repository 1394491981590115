"""What every test runs under."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: test processes share the cores

import pytest
from hypothesis import settings

from store import postgres

# a busy machine is no failure, and what failed fails again: HYPOTHESIS_SEARCH=1 looks elsewhere,
# and longer
SEARCH = "HYPOTHESIS_SEARCH" in os.environ
settings.register_profile(
    "archipel", deadline=None, derandomize=not SEARCH, max_examples=100 if SEARCH else 30
)
settings.load_profile("archipel")

LONG = {"test_docs.py", "test_comparison.py"}  # files that take minutes


def pytest_collection_modifyitems(items):
    """Begin with what takes long: no core waits at the end for a file that began last."""
    items.sort(key=lambda item: item.path.name not in LONG)


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory):
    """Plans are timed anew, not read from the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def server():
    """One PostgreSQL server for all tests of what lies in a database."""
    found = postgres.binaries()
    if found is None:
        pytest.skip("PostgreSQL is not installed: databases are tested with SQLite alone")
    with postgres.running(found) as server:
        yield server
