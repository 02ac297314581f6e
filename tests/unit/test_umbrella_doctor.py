"""What the doctor finds, and that it says what to do."""

import os
import socket
import time
from pathlib import Path

import pytest
from msgspec import structs

from gsched.cli.local import head_checks, machine_checks, notify_checks
from gsched.cli.local.findings import Finding, Level, fail
from gsched.config.nodes import GpuShareConfig, NodeConfig
from gsched.config.tables import Config, PowerConfig
from gsched.config.tls import TlsConfig
from gsched.model.gpu_tokens import GpuSharing
from gsched.model.window import NodeWindow
from gsched.model.wording import FENCE_OFF
from gsched.pki.files import AUTHORITY, DIRECTORY, OWN, TRUSTED, files_of
from gsched.pki.issuing import make_authority_file
from gsched.protocol.api import API_VERSION, DiskRow
from gsched.version import VERSION
from tests.support.canned_head import node, status
from tests.support.certificates import give_certificate


def levels(findings: list[Finding]) -> dict[str, Level]:
    """Return the level of each subject."""
    return {finding.subject: finding.level for finding in findings}


def test_a_complaint_without_advice_cannot_be_made() -> None:
    """Each says what to do."""
    with pytest.raises(ValueError, match="says what to do"):
        fail("disk", "full", "")


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({}, Level.OK),
        ({"free_bytes": 2**28}, Level.WARN),
        ({"free_inodes": 50}, Level.WARN),
        ({"free_inodes": 0}, Level.FAIL),
        ({"is_low": True}, Level.FAIL),
        ({"free_bytes": 2**20}, Level.FAIL),
    ],
)
def test_the_doctor_shows_the_room_of_the_heads_disk(
    changes: dict[str, object], level: Level
) -> None:
    disk = DiskRow(
        path="/s", free_bytes=2**34, total_bytes=2**35, free_inodes=10**6, total_inodes=10**7,
        is_low=False,
    )  # fmt: skip
    found = head_checks.check_status(status(disk=structs.replace(disk, **changes)), now_s=1000.0)

    (finding,) = (each for each in found if each.subject == "head's disk")
    assert finding.level is level
    assert "free at /s" in finding.text
    assert "inodes" in finding.text


def test_the_doctor_shows_that_the_head_cannot_write() -> None:
    found = head_checks.check_status(status(stalled="the head's disk is full"), now_s=1000.0)

    assert levels(found)["database"] is Level.FAIL


def test_the_doctor_shows_the_room_of_a_node_on_this_machine(tmp_path: Path) -> None:
    config = Config(node=NodeConfig(state_dir=str(tmp_path), tmp_dir=str(tmp_path / "none")))

    found = levels(machine_checks.check_node_disks(config))

    assert set(found) == {"spool space", "tmp space"}
    assert found["tmp space"] is Level.WARN, "it is not there"


def test_python_with_the_groups_fault_is_refused() -> None:
    """3.12.0 started programs with root's groups."""
    assert machine_checks.check_python((3, 12, 0)).level is Level.FAIL
    assert machine_checks.check_python((3, 10, 9)).level is Level.FAIL
    assert machine_checks.check_python((3, 12, 1)).level is Level.OK
    assert machine_checks.check_python((3, 11, 0)).level is Level.OK


def test_certificates_that_others_can_read_are_broken(tmp_path: Path) -> None:
    """Who reads the authority can pose as the head and as each host."""
    files = files_of(str(tmp_path), TlsConfig())
    assert "none yet" in machine_checks.check_certificates(files).text
    make_authority_file(files.directory, "test", 1e9)
    assert machine_checks.check_certificates(files).level is Level.OK
    (tmp_path / "pki" / "authority.pem").chmod(0o640)
    assert "mode 0640" in machine_checks.check_certificates(files).text
    assert machine_checks.check_certificates(files).level is Level.FAIL


def test_the_certificate_of_a_node_is_looked_at(tmp_path: Path) -> None:
    """Missing, cut, that of another name, expired; a head on a Unix socket needs none."""
    state = tmp_path / "node"
    config = Config(node=NodeConfig(name="n1", head="head:15010", state_dir=str(state)))

    def found() -> str:
        (finding,) = machine_checks.check_node_certificate(config)
        return f"{finding.level}: {finding.text} -> {finding.todo}"

    assert "has no certificate in" in found()
    make_authority_file(str(tmp_path / DIRECTORY), "test", time.time())
    (tmp_path / DIRECTORY / TRUSTED).write_bytes((tmp_path / DIRECTORY / AUTHORITY).read_bytes())
    for name, shift_s, words in (
        ("n2", 0.0, "that of node n2"),
        ("n1", -100 * 86_400.0, "has expired -> compare the clocks"),
        ("n1", 0.0, "that of node n1, until"),
    ):
        give_certificate(tmp_path, state, name, cluster="c", shift_s=shift_s, again=True)
        assert words in found()
    (state / DIRECTORY / TRUSTED).unlink()
    assert f"has no authority in {state / DIRECTORY / TRUSTED} -> on the head" in found()
    give_certificate(tmp_path, state, "n1", cluster="c", again=True)
    own = state / DIRECTORY / OWN
    own.write_bytes(own.read_bytes()[:100])
    assert "has no certificate of a host that can be read -> on the head run gsched" in found()
    local = Config(node=structs.replace(config.node, head="unix:/run/gsched/head-node.sock"))
    assert list(machine_checks.check_node_certificate(local)) == []


def test_a_database_that_others_can_read_is_broken(tmp_path: Path) -> None:
    """It holds scripts and environments."""
    database = tmp_path / "gsched.db"
    database.touch(mode=0o600)
    assert machine_checks.check_private(database, "database").level is Level.OK
    database.chmod(0o644)
    assert machine_checks.check_private(database, "database").level is Level.FAIL


def test_a_missing_state_directory_is_broken(tmp_path: Path) -> None:
    """And one that is there is looked at for room."""
    missing = machine_checks.check_state_directory(tmp_path / "no")
    assert levels(missing) == {"state directory": Level.FAIL}
    assert "disk space" in levels(machine_checks.check_state_directory(tmp_path))


@pytest.mark.parametrize(
    ("free_bytes", "level"),
    [(10 * 1024**3, Level.OK), (500 * 1024**2, Level.WARN), (1024**2, Level.FAIL)],
)
def test_little_space_is_told_before_it_is_too_little(free_bytes: int, level: Level) -> None:
    """A warning comes first."""
    assert machine_checks.check_space(Path("/x"), free_bytes).level is level


def test_control_groups_are_judged_by_what_can_be_done(tmp_path: Path) -> None:
    """None, without memory, complete."""
    assert "no cgroup v2 tree" in machine_checks.check_cgroup(tmp_path).text
    (tmp_path / "cgroup.procs").touch()
    (tmp_path / "cgroup.controllers").write_text("cpu\n")
    assert "no memory controller" in machine_checks.check_cgroup(tmp_path).text
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    assert machine_checks.check_cgroup(tmp_path).level is Level.OK


def test_the_binding_of_jobs_to_cpus_is_told(tmp_path: Path) -> None:
    """By the strongest way that works; a node that offers more than there is cannot bind."""

    def found(**settings: object) -> tuple[Level, str]:
        node = NodeConfig(**settings)  # type: ignore[arg-type]  # as the test states them
        finding = machine_checks.check_cpu_binding(Config(node=node), tmp_path)
        return finding.level, finding.text

    usable = len(os.sched_getaffinity(0))
    assert found()[1].startswith("by affinity")
    assert found(cpu_binding="cpuset")[0] is Level.FAIL
    level, text = found(cpu_binding="none")
    assert level is Level.OK
    assert text.endswith('slows the others down; reason: cpu_binding = "none" in [node]')
    level, text = found(cpus=usable + 1)
    assert level is Level.WARN
    assert text.startswith("none: jobs run on all CPUs")
    assert f"; reason: the node offers {usable + 1} CPUs, but" in text
    (tmp_path / "cpuset").mkdir()
    (tmp_path / "cpuset" / "cpuset.cpus").write_text("0")
    assert found() == (Level.OK, "by cpuset control groups")
    assert found(cpu_binding="affinity")[1].startswith("by affinity")


def test_a_broken_configuration_is_a_finding(tmp_path: Path) -> None:
    """With the hint that the error has."""
    path = tmp_path / "gsched.toml"
    path.write_text("[head]\nsokcet = 'x'\n")
    finding, config = machine_checks.check_config(str(path))
    assert finding.level is Level.FAIL
    assert "socket" in finding.todo
    assert config is None


def test_a_node_that_knows_more_than_the_database_is_told() -> None:
    """With the command by which an operator believes it."""
    told = status(quarantined={"n2": "n2 has obeyed another head"})
    findings = head_checks.check_status(told, now_s=1000.0)

    (found,) = [each for each in findings if each.subject == "node n2"]
    assert "n2 has obeyed another head" in found.text
    assert "gsched recover --believe n2" in found.todo


def test_safe_mode_wrong_api_and_dropped_messages_are_told() -> None:
    """Each by itself."""
    good = status(version=VERSION)
    assert set(levels(head_checks.check_status(good, now_s=1000.5)).values()) == {Level.OK}

    found = levels(
        head_checks.check_status(
            status(api_version=API_VERSION + 1, safe_mode="cut", dropped={"policy_failed": 3}),
            now_s=990.0,
        )
    )
    assert found == {
        "version": Level.FAIL,
        "safe mode": Level.FAIL,
        "clock": Level.WARN,
        "policy": Level.WARN,
    }


def test_late_messages_need_nothing_to_be_done() -> None:
    """Unlike a policy that fails; what they are is said."""
    told = status(version=VERSION, dropped={"exit_again": 2, "policy_failed": 1})
    found = {each.subject: each for each in head_checks.check_status(told, now_s=1000.0)}

    assert found["messages"].level is Level.OK
    assert "(exit_again 2): nothing to do" in found["messages"].text
    assert found["policy"].text == "since the head started the scheduling policy failed 1 times"
    assert "log" in found["policy"].todo


def test_another_version_is_told() -> None:
    """Which works as long as the API is the same."""
    other = levels(head_checks.check_status(status(version="9"), now_s=1000.0))["version"]
    assert other is Level.WARN


def test_nodes_that_take_no_jobs_are_told_with_the_reason() -> None:
    """Unreachable is broken, drained is somebody's wish."""
    rows = [
        node("a"),
        node("b", state="unreachable", reason="no word for 40 s"),
        node("c", drained=True, reason="new driver"),
        node("d", heartbeat_s=1.0),
        node("e", state="unreachable", refused="refused from 10.0.0.9"),
    ]
    found = head_checks.check_nodes(rows, now_s=2000.0)

    assert levels(found) == {
        "node b": Level.FAIL,
        "node c": Level.WARN,
        "node d": Level.WARN,
        "node e": Level.FAIL,
        "nodes": Level.OK,
    }
    assert "no word for 40 s" in found[0].text
    assert "1 of 5" in found[-1].text
    assert levels(head_checks.check_nodes([], now_s=0.0)) == {"nodes": Level.FAIL}


def test_a_socket_in_a_directory_open_to_all_is_broken(tmp_path: Path) -> None:
    """Everybody could put his own in its place."""
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
    assert head_checks.check_socket(str(path)).level is Level.OK
    tmp_path.chmod(0o777)
    assert "all users can replace" in head_checks.check_socket(str(path)).text
    tmp_path.chmod(0o1777)
    assert head_checks.check_socket(str(path)).level is Level.OK
    tmp_path.chmod(0o700)
    plain = tmp_path / "plain"
    plain.touch()
    assert "is not a socket" in head_checks.check_socket(str(plain)).text


def test_doctor_says_whether_gpus_can_be_shared(tmp_path: Path) -> None:
    """By interception with a compiler and a driver only; other runtimes need none."""
    wanted = Config(gpu_share=GpuShareConfig(runtime="interception"))
    without = machine_checks.check_gpu_share(wanted, path=str(tmp_path))
    (tmp_path / "gcc").write_text("#!/bin/sh\n")
    (tmp_path / "gcc").chmod(0o755)
    no_driver = machine_checks.check_gpu_share(wanted, path=str(tmp_path), driver=lambda: None)
    driver = tmp_path / "libcuda.so.1"
    named = Config(gpu_share=GpuShareConfig(runtime="interception", driver=str(driver)))
    wrong_name = machine_checks.check_gpu_share(named, path=str(tmp_path))
    driver.touch()
    with_one = machine_checks.check_gpu_share(named, path=str(tmp_path))
    other = machine_checks.check_gpu_share(Config(gpu_share=GpuShareConfig(runtime="mps")))

    assert [finding.level for finding in without] == [Level.WARN]
    assert "install gcc" in without[0].todo
    for finding in (*no_driver, *wrong_name):
        assert finding.level is Level.WARN
        assert "no CUDA driver" in finding.text
        assert "driver in [gpu_share]" in finding.todo
    assert [finding.level for finding in with_one] == [Level.OK]
    assert other == []


def test_doctor_names_nodes_that_cannot_share_their_gpus() -> None:
    rows = [
        node("n1", gpu_tokens=GpuSharing(words="none: no C compiler: install gcc")),
        node("n2", gpu_tokens=GpuSharing(words="interception")),
    ]

    findings = head_checks.check_nodes(rows, now_s=0.0)

    (warned,) = [finding for finding in findings if finding.level is Level.WARN]
    assert (warned.subject, warned.text) == (
        "node n1",
        "cannot share its GPUs: no C compiler: install gcc",
    )
    assert "2 of 2 accept jobs" in [finding.text for finding in findings]


def test_doctor_says_which_nodes_share_gpus_and_by_what() -> None:
    rows = [
        node("n1", sharing="interception", gpu_tokens=GpuSharing(words="interception")),
        node("n2", sharing="mps", gpu_tokens=GpuSharing(words="mps")),
        node("n3", sharing="interception", gpu_tokens=GpuSharing(words="interception")),
        node("n4"),
    ]

    found = [
        each for each in head_checks.check_nodes(rows, now_s=0.0) if each.subject == "shared GPUs"
    ]

    assert [(finding.level, finding.text) for finding in found] == [
        (Level.OK, "2 nodes (n1, n3): interception"),
        (Level.OK, "1 node (n2): mps"),
    ]


def test_doctor_says_by_which_means_nodes_keep_jobs_from_gpus_of_others() -> None:
    rows = [
        node("n1", gpus=2, gpu_fence="bpf"),
        node("n2", gpus=2, gpu_fence="none: gnode does not run as root"),
        node("n3", gpus=1, gpu_fence="bpf"),
        node("n4", gpu_fence="bpf"),
        node("n5", gpus=1, gpu_fence=FENCE_OFF),
    ]

    found = [
        (each.level, each.text)
        for each in head_checks.check_nodes(rows, now_s=0.0)
        if each.subject == "fences of GPUs"
    ]

    assert found == [
        (Level.OK, "2 nodes (n1, n3): bpf"),
        (Level.WARN, "1 node (n2): none: gnode does not run as root"),
        (Level.OK, "1 node (n5): none: gpu_fence in [node] is none"),
    ]


def test_doctor_says_what_to_free_before_a_node_with_a_full_disk_is_resumed() -> None:
    full = "it cannot start jobs: cannot write the job's files below /tmp: No space left on device"
    rows = [
        node("n1", drained=True, reason=full, automatic=True, probe_due_s=60.0),
        node("n2", drained=True, reason=full),
        node("n3", drained=True, reason="maintenance"),
    ]

    probed, given_up, other = head_checks.check_nodes(rows, now_s=0.0)[:3]

    assert probed.todo == (
        "free space in the directory above (gnode removes only directories of ended jobs); then "
        "gsched resumes the node at its next probe, or at once: gnodes resume n1"
    )
    assert given_up.todo.endswith("removes only directories of ended jobs), then: gnodes resume n2")
    assert other.todo == "gnodes resume n3"


def test_doctor_says_how_a_maintenance_ends() -> None:
    """By the drain's end where the node is drained, too."""
    window = NodeWindow(number=4, from_s=0.0, to_s=90.0, begun=True)
    rows = [
        node("n1", drained=True, reason="maintenance until 1970", windows=(window,)),
        node("n2", drained=True, reason="fan", reason_by="root", windows=(window,)),
    ]

    maintained, drained = head_checks.check_nodes(rows, now_s=0.0)[:2]

    assert maintained.todo == "it ends by itself; at once: gnodes maintenance --cancel 4"
    assert drained.todo == "gnodes resume n2"


@pytest.mark.parametrize("mode", [None, 0o644, 0o757, 0o755])
def test_doctor_checks_the_programs_that_power_nodes(tmp_path: Path, mode: int | None) -> None:
    """Whoever turns nodes off by a program that is not there notices nothing until they stay on."""
    program = tmp_path / "suspend"
    if mode is not None:
        program.write_text("#!/bin/sh\n")
        program.chmod(mode)
    power = PowerConfig(suspend_program=str(program), resume_program="/bin/true")

    suspend, resume = notify_checks.check_power(power)

    assert suspend.subject == "power suspend_program"
    assert suspend.level is (Level.OK if mode == 0o755 else Level.FAIL)
    assert resume.level is Level.OK
    assert notify_checks.check_power(PowerConfig()) == []
