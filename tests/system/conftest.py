"""What tests of supervisors share, those of real training jobs, and those of the page."""

import pytest

from gnode.compiling import find_compiler
from tests.support import builds
from tests.support.cluster import Cluster, wait_until
from tests.support.forks import ForkServer
from tests.support.launching import Way
from tests.support.migration import undisturbed
from tests.support.monitor import Browser, address, is_ready
from tests.support.v1_groups import missing


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
    return builds.native_library(tmp_path_factory, compiler)


@pytest.fixture(params=["python", "native"])
def library(request: pytest.FixtureRequest) -> str:
    """Return the library of a launcher whose plain jobs it runs, and "" for one without it."""
    return str(request.getfixturevalue("native_library")) if request.param == "native" else ""


@pytest.fixture(params=["python", "native", pytest.param("bound", marks=pytest.mark.root)])
def way(request: pytest.FixtureRequest) -> Way:
    """Return how a launcher runs jobs: by Python, by the library, or by it with control groups."""
    if request.param == "bound" and (lacking := missing()):
        pytest.skip(f"no control groups of version 1 here: {lacking}")
    library = "" if request.param == "python" else request.getfixturevalue("native_library")
    return Way(library, has_groups=request.param == "bound")


@pytest.fixture
def watched(cluster: Cluster) -> Cluster:
    """Return a cluster with a head and its monitor."""
    cluster.has_monitor = True
    cluster.start_head()
    wait_until(lambda: is_ready(cluster), what="the monitor to be ready")
    return cluster


@pytest.fixture
def browser(watched: Cluster) -> Browser:
    """Return a browser that has logged in to the page."""
    made = Browser(address(watched))
    made.log_in()
    return made
