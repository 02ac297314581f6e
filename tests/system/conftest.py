"""What tests of real training jobs share."""

from collections.abc import Iterator

import pytest

from tests.support.forks import ForkServer, torch_server
from tests.support.migration import undisturbed


@pytest.fixture(scope="session")
def expected(tmp_path_factory: pytest.TempPathFactory, forks: ForkServer) -> dict[str, object]:
    """Return the result of the training of `Migration` when nobody disturbs it."""
    return undisturbed(tmp_path_factory.mktemp("undisturbed"), forks)


@pytest.fixture(scope="session")
def forks() -> Iterator[ForkServer]:
    made = torch_server()
    yield made
    made.close()
