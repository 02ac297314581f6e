"""What tests of supervisors share, and those of real training jobs."""

import pytest

from gnode.compiling import find_compiler
from gnode.daemon import native_build
from tests.support.forks import ForkServer
from tests.support.migration import undisturbed


@pytest.fixture(scope="session")
def expected(tmp_path_factory: pytest.TempPathFactory, forks: ForkServer) -> dict[str, object]:
    """Return the result of the training of `Migration` when nobody disturbs it."""
    return undisturbed(tmp_path_factory.mktemp("undisturbed"), forks)


@pytest.fixture(scope="session")
def native_library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of the library that runs plain jobs."""
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C compiler: the library that runs plain jobs cannot be built")
    return str(native_build.build(tmp_path_factory.mktemp("native"), compiler))


@pytest.fixture(params=["python", "native"])
def library(request: pytest.FixtureRequest) -> str:
    """Return the library of a launcher whose plain jobs it runs, and "" for one without it."""
    return str(request.getfixturevalue("native_library")) if request.param == "native" else ""
