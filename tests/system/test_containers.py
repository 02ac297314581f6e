"""Jobs in containers of Podman: what they see, how they end, and that nothing of them is left."""

import os
import signal
from collections.abc import Iterator

import psutil
import pytest

from tests.support.cluster import Cluster, wait_until
from tests.support.commands import Ran, run_command
from tests.support.images import IMAGE, Podman, podman

pytestmark = [pytest.mark.root, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    made = podman(tmp_path_factory.mktemp("podman"))
    yield made
    made.remove()


@pytest.fixture
def head(cluster: Cluster, images: Podman) -> Cluster:
    cluster.start_head()
    place = {"GSCHED_TEST_CONTAINER_PATH": str(images.program.parent)}
    cluster.start_node("n1", cpus=2, env=place, container_runtimes=["podman"])
    return cluster


def gsub(head: Cluster, images: Podman, script: str, *options: str) -> Ran:
    """Submit a script that runs in the image."""
    path = head.jobs / "script"
    path.write_text(f"#!/bin/sh\n{script}\n")
    storage = f"CONTAINERS_STORAGE_CONF={images.config}"
    asked = ("--container", IMAGE, "-v", storage, "-o", "out", "-e", "err", *options)
    return run_command("gsub", *asked, str(path), head=head.socket, cwd=head.jobs)


def wait(head: Cluster, ran: Ran) -> int:
    """Return the exit code of a job, once it has ended."""
    assert ran.status == 0, ran.stderr
    return run_command("gwait", ran.stdout.strip(), head=head.socket, cwd=head.jobs).status


def running(mark: str) -> set[int]:
    """Return the processes that have a word in their command line."""
    return {
        each.pid
        for each in psutil.process_iter(["cmdline"])
        if any(mark in word for word in each.info["cmdline"] or ())
    }


def test_a_job_sees_its_image_its_files_and_its_environment(head: Cluster, images: Podman) -> None:
    data = head.jobs.parent / "data"
    data.mkdir()
    (data / "there").touch()
    script = (
        "ls / >&2; pwd; echo $GSCHED_JOB_NUMBER $MINE; ls /data; cat $PBS_NODEFILE; nproc\nexit 7"
    )
    ran = gsub(head, images, script, "-v", "MINE=kept", "--container-mount", f"{data}:/data:ro")

    assert wait(head, ran) == 7
    *said, cpus = (head.jobs / "out").read_text().splitlines()
    assert said == [str(head.jobs), "1 kept", "there", "n1"]
    # Jobs are not bound to CPUs while a node of another test uses the same ones.
    assert int(cpus) in {1, os.cpu_count()}
    there = (head.jobs / "err").read_text().split()
    assert "bin" in there
    assert "usr" not in there, "it is the image's root directory, not the node's"
    wait_until(lambda: not images.containers(), what="the removal of the container")


def test_a_missing_image_is_told_in_the_error_file(head: Cluster, images: Podman) -> None:
    ran = gsub(head, images, "echo never", "--container", "localhost/none:1")

    assert wait(head, ran) == 125
    said = (head.jobs / "err").read_text()
    assert "gsched: pulling image localhost/none:1" in said
    assert "gsched: cannot get image localhost/none:1" in said


def test_a_signal_reaches_the_job_and_its_end_leaves_nothing(head: Cluster, images: Podman) -> None:
    script = "trap 'echo saved; exit 3' TERM\ntouch begun\nwhile :; do sleep 0.1; done"
    ran = gsub(head, images, script, "--grace", "20")
    wait_until((head.jobs / "begun").exists, what="the start of the job")
    deleted = run_command("gdel", ran.stdout.strip(), head=head.socket, cwd=head.jobs)
    assert deleted.status == 0, deleted.stderr
    wait(head, ran)

    # From the supervisor, and once more from podman, which passes on what it gets itself.
    assert (head.jobs / "out").read_text() in {"saved\n", "saved\nsaved\n"}
    wait_until(lambda: not images.containers(), what="the removal of the container")
    assert not running(f"{images.directory}")


def test_nothing_survives_a_job_whose_supervisor_is_killed_and_that_ignores_signals(
    head: Cluster, images: Podman
) -> None:
    script = "trap '' TERM INT HUP\ntouch begun\n(while :; do sleep 7771; done) &\nsleep 7771"
    ran = gsub(head, images, script, "--grace", "1")
    wait_until((head.jobs / "begun").exists, what="the start of the job")
    mine = wait_until(lambda: running("7771"), what="the processes of the container")
    conmon = running("gsched-1.1")
    (supervisor,) = {
        parent.pid
        for pid in mine
        for parent in psutil.Process(pid).parents()
        if parent.parent() is not None and "gnode.supervisor.launcher" in " ".join(parent.cmdline())
        and "gnode.supervisor.launcher" in " ".join(parent.parent().cmdline())  # type: ignore[union-attr]  # looked at above
    }  # fmt: skip
    os.kill(supervisor, signal.SIGKILL)
    deleted = run_command("gdel", ran.stdout.strip(), head=head.socket, cwd=head.jobs)
    assert deleted.status == 0, deleted.stderr
    wait(head, ran)

    assert conmon
    wait_until(lambda: not running("7771") | running("gsched-1.1"), what="the end of all of it")
    wait_until(lambda: not images.containers(), what="the removal of the container")


def test_a_job_that_no_node_can_run_is_refused(head: Cluster, images: Podman) -> None:
    ran = gsub(head, images, "echo", "--container-runtime", "enroot")

    assert ran.status != 0
    assert f"no node can run image {IMAGE}: none has enroot" in ran.stderr
    assert "the nodes have podman" in ran.stderr


def test_the_memory_limit_of_the_job_holds_in_its_container(head: Cluster, images: Podman) -> None:
    ran = gsub(head, images, "cat /proc/self/cgroup", "-l", "mem=100mb")

    assert wait(head, ran) == 0
    groups = (head.jobs / "out").read_text()
    assert "/1.1" in groups, "it runs in the attempt's control groups"
    assert "libpod" not in groups


def test_the_node_says_what_it_has(head: Cluster) -> None:
    ran = run_command("gnodes", "n1", head=head.socket, cwd=head.jobs)
    assert "container,container-podman" in ran.stdout
