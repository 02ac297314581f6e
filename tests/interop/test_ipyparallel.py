"""ipyparallel's PBS launchers start a controller and engines through the shims, unmodified.

Both are job arrays (``#PBS -t 1-N``), deleted by their bare numbers.
"""

from importlib.util import find_spec

import pytest

from tests.interop.conftest import Site

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(
        find_spec("ipyparallel") is None, reason="ipyparallel is missing: pip install '.[interop]'"
    ),
]

PROGRAM = """
import ipyparallel as ipp

if __name__ == "__main__":
    with ipp.Cluster(controller="pbs", engines="pbs", n=2) as client:
        client.wait_for_engines(2, timeout=90)
        print(sorted(client[:].apply_sync(lambda: 6 * 7)))
"""


def test_controller_and_engines_run_as_job_arrays(site: Site) -> None:
    ran = site.python(PROGRAM)

    assert ran.stdout.strip() == "[42, 42]", ran.stderr
    assert site.run("qstat").stdout == "", "the jobs were deleted at the end"
