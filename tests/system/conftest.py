"""What tests of real trainings share."""

import pytest

from tests.support.migration import undisturbed


@pytest.fixture(scope="session")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Return the result of the training of `Migration` when nobody disturbs it."""
    return undisturbed(tmp_path_factory.mktemp("undisturbed"))
