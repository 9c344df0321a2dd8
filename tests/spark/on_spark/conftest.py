"""What tests on Spark share: a session, a real gateway, and folders of their own.

Knows: how to start them, and that nothing is left running. Must never know: what is tested.

Everything in this folder is marked `spark` and runs in two processes: a session takes ten seconds to start,
and its first streaming query ten more. Where there is no Java, the tests fail with what to install.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_weir.session import SessionOptions, open_session
from tests.server import server_of
from tests.spark.cluster import JVM

_HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test in this folder is one on Spark; before `-m` chooses."""
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def session() -> Iterator[SparkSession]:
    """The session of this process; use `spark`, which looks after it."""
    with pytest.MonkeyPatch.context() as patch:
        # Spark's Python processes inherit it, and would be measured at the price of half their speed.
        patch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
        session = open_session(SessionOptions(app="tests", conf={"spark.driver.extraJavaOptions": JVM}))
    yield session
    session.stop()


@pytest.fixture
def spark(session: SparkSession) -> Iterator[SparkSession]:
    """The session; a test that leaves a streaming query behind fails, and the query is stopped."""
    yield session
    left = session.streams.active
    for query in left:
        query.stop()
    assert [query.name or str(query.id) for query in left] == []
    session.catalog.clearCache()


# One gateway for all tests; tests use streams of different names. It is there for the whole run.
shared_server = server_of("session")


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """A folder for the checkpoint of a query."""
    return str(tmp_path / "checkpoint")
