"""What tests of real training jobs share."""

import pytest

from tests.support.forks import ForkServer
from tests.support.migration import undisturbed


@pytest.fixture(scope="session")
def expected(tmp_path_factory: pytest.TempPathFactory, forks: ForkServer) -> dict[str, object]:
    """Return the result of the training of `Migration` when nobody disturbs it."""
    return undisturbed(tmp_path_factory.mktemp("undisturbed"), forks)
