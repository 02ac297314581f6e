"""scripts/reproduce/sharing --live: real jobs on devices without GPUs, shortened."""

from pathlib import Path

import pytest

from gsched.config.nodes import SharingRules
from scripts.reproduce.sharing_live import Stage, scaled
from scripts.reproduce.sharing_model import GPUS, Group, draw
from tests.support.builds import give_native_library, give_share_library
from tests.support.gpu_fixtures import fake_driver, library_cache, needs_compiler

__all__ = ["fake_driver", "library_cache"]
pytestmark = [needs_compiler, pytest.mark.timeout(300)]


def test_jobs_that_share_run_at_once_and_do_all_of_their_work(
    tmp_path: Path, fake_driver: Path, library_cache: Path, native_library: str
) -> None:
    """Eight jobs of 1 to 3 seconds arrive at once on four GPUs."""
    for name in ("n1", "n2"):
        node = tmp_path / "run1" / "c" / "nodes" / name
        give_native_library(native_library, node)
        give_share_library(library_cache, node)
    jobs = [scaled(job) for job in draw(0, Group(window_s=0.0, scale=0.15))][:8]
    live = Stage(tmp_path, fake_driver).run(jobs, SharingRules(), shared=True)

    work_s = sum(job.duration_s * job.gpu_use for job in jobs)
    assert live.busy_s == pytest.approx(work_s, 0.05)  # kernels take their time
    assert live.at_once > GPUS
    assert live.outcome.utilisation == pytest.approx(live.busy_s / GPUS / live.outcome.completion_s)
