"""Scripts of a site that comes from Torque, OpenPBS or Slurm run unchanged through the shims."""

import os
import shutil
from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster
from tests.support.processes import MARKER
from tests.support.site_cases import CASES
from tests.support.site_scripts import SCRIPTS, Case, ScriptSite

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("site_scripts")]
SOURCES = frozenset({"params.txt", "stage.pbs", "arguments.pbs", "stage.sh"})  # of other scripts


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptSite]:
    """Return a cluster on which all cases are submitted: they run side by side."""
    directory = tmp_path_factory.mktemp("site")
    marker = f"site-scripts-{os.getpid()}"
    before = os.environ.get(MARKER)
    os.environ[MARKER] = marker
    cluster = Cluster(directory / "cluster", marker)
    try:
        made = ScriptSite(cluster)
        for case in CASES:
            if case.is_possible:
                made.submit(case)
        yield made
    finally:
        cluster.stop()
        os.environ.pop(MARKER)
        if before is not None:
            os.environ[MARKER] = before


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_script_gets_what_it_asks_for_and_does_its_work(site: ScriptSite, case: Case) -> None:
    if not case.is_possible:
        pytest.skip(f"{', '.join(case.needs)} is not installed")
    result = site.finish(case)

    assert result.status == 0, result.warnings
    assert result.got == case.got, result.output
    for text in case.says:
        assert text in result.output
    for text in case.silent:
        assert text not in result.output
    assert len(result.warnings) == len(case.ignored), result.warnings
    for word, warning in zip(case.ignored, result.warnings, strict=True):
        assert word in warning


def test_every_script_is_a_case() -> None:
    scripts = {f"{path.parent.name}/{path.name}" for path in SCRIPTS.glob("[ps]*/*")}

    assert {case.name for case in CASES} == {
        name for name in scripts if name.partition("/")[2] not in SOURCES
    }
    assert all(shutil.which(word) for case in CASES for word in case.needs if case.is_possible)
