"""What the watchdog of shared GPUs finds in samples of NVML."""

from gnode.gpushare.watchdog import PATIENCE, SharedJob, Watchdog

GIB = 1 << 30
JOB = SharedJob(group="7.1", gpu="GPU-1", memory_bytes=8 * GIB, pids=frozenset({10, 11}))


def looks(watchdog: Watchdog, memory: dict[int, int], times: int) -> list[str]:
    """Return the reasons of the last of some samples; process 20 is of the job, too."""
    found = []
    for _ in range(times):
        found = watchdog.look({"GPU-1": memory}, [JOB], {20: "7.1"}.get)
    return [f"{offence.pids}: {offence.reason}" for offence in found]


def test_a_job_within_its_limit_and_its_contexts_is_left_alone() -> None:
    assert looks(Watchdog(GIB), {10: 5 * GIB, 11: 5 * GIB}, 10) == []


def test_a_job_above_its_limit_is_found_after_some_samples_in_a_row() -> None:
    watchdog = Watchdog(GIB)
    too_much = {10: 5 * GIB, 11: 5 * GIB + 1}

    assert looks(watchdog, too_much, PATIENCE - 1) == []
    assert looks(watchdog, {10: GIB}, 1) == []
    assert looks(watchdog, too_much, PATIENCE - 1) == []
    (reason,) = looks(watchdog, too_much, 1)
    assert reason.startswith("(10, 11): job 7.1 uses")
    assert "its limit is 8gb" in reason


def test_a_process_of_a_job_that_the_daemon_does_not_know_is_found() -> None:
    (reason,) = looks(Watchdog(GIB), {10: GIB, 20: GIB}, PATIENCE)

    assert reason.startswith("(20,): job 7.1 uses the shared GPU GPU-1 around")


def test_processes_of_nobody_are_left_alone() -> None:
    """Such as a display server, or a tool of the site."""
    assert looks(Watchdog(GIB), {99: 100 * GIB}, 10) == []


def test_another_gpu_does_not_count() -> None:
    watchdog = Watchdog(GIB)
    found = [
        watchdog.look({"GPU-2": {10: 100 * GIB}}, [JOB], lambda _: None) for _ in range(PATIENCE)
    ]

    assert not any(found)
