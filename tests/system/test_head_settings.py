"""Settings of the cluster: the head's file states them for its nodes, which take them or refuse."""

import asyncio
import grp
import json
import os
import pwd
import signal
import stat
import tomllib
from pathlib import Path

import pytest

from gnode.pam import is_administrator
from gsched.config.load import read_config
from gsched.kept_settings import NAME, configured, read
from gsched.model.configuration import ConfigRow, SettingsRow
from gsched.protocol.node import Welcome
from gsched.protocol.settings import ClusterSettings
from tests.support.cluster import Cluster, wait_until
from tests.support.commands import Ran, run_command
from tests.support.dialler import dialled

LIMIT = "[node]\njob_open_files = 256\n"


def change(cluster: Cluster, text: str) -> Ran:
    """Replace what the head's file states for nodes, and reload."""
    file = cluster.directory / "head.toml"
    head = file.read_text().partition("# for nodes\n")[0]
    file.write_text(f"{head}# for nodes\n{text}")
    return run_command("gsched", "reload", head=cluster.socket)


def told(cluster: Cluster, name: str) -> SettingsRow:
    """Return what a node has told of its settings."""
    row = next(row for row in cluster.head.nodes().nodes if row.name == name)
    assert row.config is not None
    assert row.config.settings is not None
    return row.config.settings


def present(cluster: Cluster) -> str:
    config = cluster.head.status().config
    assert config is not None
    assert config.settings is not None
    return config.settings.digest


def wait_for_settings(cluster: Cluster, *names: str) -> None:
    """Wait until nodes have the head's present settings."""

    def have() -> bool:
        return all(told(cluster, name).digest == present(cluster) for name in names)

    wait_until(have, what="the settings to reach the nodes")


def setting(cluster: Cluster, name: str, key: str) -> tuple[object, str, object]:
    """Return value, origin and pending value of a key, as ``gnodes settings`` has them."""
    ran = run_command("gnodes", "settings", name, "--json", head=cluster.socket)
    assert ran.status == 0, ran.stderr
    (reply,) = json.loads(ran.stdout)["nodes"]
    row = next(row for row in reply["settings"] if row["key"] == key)
    assert row["restart"] is (row["pending"] is not None)
    return row["value"], row["origin"], row["pending"]


def submit(cluster: Cluster, node: str, command: str) -> int:
    ran = run_command(
        *(
            "gsub",
            "-l",
            f"nodes={node}",
            "-o",
            str(cluster.jobs / "out"),
            "--",
            "sh",
            "-c",
            command,
        ),
        head=cluster.socket,
        cwd=cluster.jobs,
    )
    assert ran.status == 0, ran.stderr
    return int(ran.stdout.partition(".")[0])


def wait_for_job(cluster: Cluster, job: int, state: str) -> None:
    wait_until(lambda: cluster.head.job(job).row.state == state, what=f"job {job} to be {state}")


def limit_of_a_job(cluster: Cluster, node: str) -> str:
    job = submit(cluster, node, "ulimit -n")
    wait_for_job(cluster, job, "done")
    return (cluster.jobs / "out").read_text().strip()


def test_a_change_at_the_head_reaches_all_nodes_and_jobs_keep_running(cluster: Cluster) -> None:
    """A node's own file wins for what it states; what nobody states has its default."""
    cluster.start_head()
    cluster.start_node("n1")
    cluster.start_node("n2", job_open_files=512)
    long = submit(cluster, "n1", "sleep 600")
    wait_for_job(cluster, long, "running")

    tables = "[staging]\ntimeout_s = '5m'\n[login]\nallow_groups = ['staff']\n"
    ran = change(cluster, f"{LIMIT}job_processes = 5000\n{tables}")

    assert ran.status == 0, ran.stderr
    assert "sent to the nodes" in ran.stdout
    assert "  [node] job_open_files: none -> 256" in ran.stdout
    wait_for_settings(cluster, "n1", "n2")
    assert setting(cluster, "n1", "job_open_files") == (256, "head", None)
    assert setting(cluster, "n2", "job_open_files") == (512, "own", None)
    assert setting(cluster, "n2", "timeout_s") == (300.0, "head", None)
    assert setting(cluster, "n1", "job_processes") == (0, "head", 5000)
    assert setting(cluster, "n1", "least_spool") == ("32mb", "default", None)
    assert setting(cluster, "n1", "allow_groups") == (["staff"], "head", None)  # by the next login
    assert limit_of_a_job(cluster, "n1") == "256"
    assert limit_of_a_job(cluster, "n2") == "512"
    assert cluster.head.job(long).row.state == "running"
    shown = run_command("gnodes", "settings", "n1", head=cluster.socket).stdout
    assert "job_open_files = 256  # of the head\n" in shown
    assert "job_processes = 0  # of the head; 5000 after a restart of gnode\n" in shown
    assert told(cluster, "n2").own == ("[node] job_open_files",)
    found = run_command("gsched", "doctor", head=cluster.socket).stdout
    assert "its own file states other values than the head: [node] job_open_files" in found

    assert change(cluster, "").status == 0

    wait_for_settings(cluster, "n1", "n2")
    assert setting(cluster, "n1", "job_open_files") == (1024, "default", None)
    assert limit_of_a_job(cluster, "n1") == "1024"
    assert cluster.head.job(long).row.state == "running"
    assert cluster.head.job(long).row.attempt == 1


def test_a_wrong_value_changes_nothing_and_the_node_says_why(cluster: Cluster) -> None:
    """The whole is refused, on the node that cannot use it alone; a repaired node takes it."""
    cluster.start_head()
    cluster.start_node("n1")
    assert change(cluster, LIMIT).status == 0
    wait_for_settings(cluster, "n1")
    program = cluster.directory / "prolog"

    assert change(cluster, f'[node]\njob_open_files = 128\nprolog = "{program}"\n').status == 0

    wait_until(lambda: bool(told(cluster, "n1").problem), what="a refusal")
    assert f"prolog in [node] = '{program}' cannot be used" in told(cluster, "n1").problem
    assert setting(cluster, "n1", "job_open_files") == (256, "head", None)
    assert limit_of_a_job(cluster, "n1") == "256"
    assert read(str(cluster.node_dir("n1"))).settings == {"node": {"job_open_files": 256}}
    shown = run_command("gnodes", "n1", head=cluster.socket).stdout
    assert "settings_refused" in shown
    found = run_command("gsched", "doctor", head=cluster.socket)
    assert f"refused: prolog in [node] = '{program}' cannot be used" in found.stdout
    assert found.status == 1

    program.write_text(f"#!/bin/sh\ntouch {cluster.jobs}/prologs.$GSCHED_JOB_NUMBER\n")
    program.chmod(0o755)
    cluster.node_process("n1").send_signal(signal.SIGHUP)  # as systemctl reload gnode does

    wait_for_settings(cluster, "n1")
    assert told(cluster, "n1").problem == ""
    assert limit_of_a_job(cluster, "n1") == "128"
    assert list(cluster.jobs.glob("prologs*"))


def test_a_node_that_cannot_use_the_first_settings_takes_no_jobs_until_it_can(
    cluster: Cluster,
) -> None:
    """It has no others, so that its jobs would run without the site's prolog."""
    program = cluster.directory / "prolog"
    cluster.queues = f'[node]\nprolog = "{program}"\n'
    cluster.start_head()
    cluster.start_node("n1", wait=False)

    wait_until(lambda: "refused: " in cluster.log("n1.log"), what="a refusal")
    wait_until(lambda: told(cluster, "n1").closed, what="a node that accepts no jobs")
    line = next(each for each in cluster.log("n1.log").splitlines() if "refused: " in each)
    assert "no others are in use, and gnode takes no new jobs. " in line
    assert "stay" not in line
    job = submit(cluster, "n1", "true")
    assert cluster.head.job(job).row.state == "queued"

    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    cluster.node_process("n1").send_signal(signal.SIGHUP)
    wait_for_job(cluster, job, "done")


def test_a_head_cannot_name_any_program_of_root_nor_set_what_is_the_hosts(
    cluster: Cluster,
) -> None:
    cluster.start_head()
    cluster.start_node("n1", allow_root_jobs=False)

    assert change(cluster, '[node]\nprolog = "/bin/sh"\njob_open_files = 128\n').status == 0

    wait_until(lambda: bool(told(cluster, "n1").problem), what="a refusal")
    words = f"[node] prolog = '/bin/sh' is not in {cluster.directory} of this host"
    assert words in told(cluster, "n1").problem
    assert setting(cluster, "n1", "job_open_files") == (1024, "default", None)

    ran = change(cluster, "[node]\nallow_root_jobs = true\nmin_uid = 1\ncpus = 99\n")

    assert ran.status == 0
    assert "allow_root_jobs" not in ran.stdout
    wait_for_settings(cluster, "n1")
    assert setting(cluster, "n1", "allow_root_jobs") == (False, "own", None)
    assert setting(cluster, "n1", "min_uid") == (0, "default", None)
    assert setting(cluster, "n1", "cpus") == (4, "own", None)


def test_a_killed_gnode_starts_with_the_settings_that_it_had_without_a_head(
    cluster: Cluster,
) -> None:
    """They lie where root alone can write; a node that was away gets what has changed since."""
    cluster.start_head()
    cluster.start_node("n1")
    assert change(cluster, LIMIT).status == 0
    wait_for_settings(cluster, "n1")
    kept = cluster.node_dir("n1") / NAME
    assert stat.S_IMODE(kept.stat().st_mode) == 0o644
    long = submit(cluster, "n1", "sleep 600")
    wait_for_job(cluster, long, "running")

    cluster.kill_node("n1")
    cluster.kill_head()
    cluster.start_node("n1", wait=False, job_processes=4000)
    wait_until(lambda: "no connection to the head" in cluster.log("n1.log"), what="a try")
    cluster.queues = f"# for nodes\n{LIMIT}heartbeat_s = 60\n"
    cluster.start_head()

    cluster.wait_for_node("n1")
    wait_for_settings(cluster, "n1")
    assert cluster.head.job(long).row.state == "running"
    log = cluster.log("n1.log")
    assert "settings of the head: [node] heartbeat_s: 300.0 -> 60.0" in log
    assert log.count("job_open_files: 1024 -> 256") == 1  # it has started with 256 again
    assert setting(cluster, "n1", "job_open_files") == (256, "head", None)

    cluster.stop_node("n1")
    cluster.wait_for_node("n1", "unreachable")
    ran = run_command("gnodes", "settings", "n1", head=cluster.socket)
    assert "node n1 is not connected: it cannot tell its settings" in ran.stderr
    assert change(cluster, "[node]\nheartbeat_s = 90\n").status == 0
    found = run_command("gsched", "doctor", head=cluster.socket).stdout
    assert "1 node (n1) has not got the head's settings" in found
    cluster.start_node("n1")
    wait_for_settings(cluster, "n1")
    assert setting(cluster, "n1", "heartbeat_s") == (90.0, "head", None)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "cannot be read"),
        (b'{"digest":"d","settings":{"node":{"job_open_files":1}}}', "job_open_files must be"),
        (b'{"digest":"d","settings":{"node":{"prolog":"/bin/sh"}}}', "is not in "),
    ],
)
def test_a_node_that_cannot_use_what_it_kept_takes_no_jobs_until_it_gets_other(
    cluster: Cluster, content: bytes, words: str
) -> None:
    cluster.start_head()
    directory = cluster.node_dir("n1")
    directory.mkdir(parents=True)
    (directory / NAME).write_bytes(content)
    config = cluster.directory / "shown.toml"
    config.write_text(f'[node]\nstate_dir = "{directory}"\n')
    shown = run_command("gsched", "config", "show", env={"GSCHED_CONFIG": str(config)})
    assert shown.status == 0
    assert words in shown.stderr
    cluster.kill_head()

    cluster.start_node("n1", wait=False)
    wait_until(lambda: "takes no new jobs: " in cluster.log("n1.log"), what="a line")
    assert words in cluster.log("n1.log")
    cluster.queues = f"# for nodes\n{LIMIT}"
    cluster.start_head()

    cluster.wait_for_node("n1")
    wait_for_settings(cluster, "n1")
    assert limit_of_a_job(cluster, "n1") == "256"


def test_one_file_of_head_and_node_is_read_again_by_both(cluster: Cluster) -> None:
    """On the head's machine, or where the file is shared: else the node's own would win."""
    cluster.start_head()
    cluster.start_node("n1", job_open_files=512)
    file, own = cluster.directory / "head.toml", cluster.directory / "n1.toml"
    file.write_text(file.read_text() + own.read_text())
    own.unlink()
    own.symlink_to(file)
    cluster.node_process("n1").send_signal(signal.SIGHUP)
    wait_until(lambda: "reload: " in cluster.log("n1.log"), what="a line")

    file.write_text(file.read_text().replace("job_open_files = 512", "job_open_files = 300"))
    ran = run_command("gsched", "reload", head=cluster.socket)

    assert ran.status == 0, ran.stderr
    wait_for_settings(cluster, "n1")
    assert setting(cluster, "n1", "job_open_files") == (300, "own", None)
    assert told(cluster, "n1").own == ()


def test_a_full_disk_refuses_settings_that_cannot_be_kept(cluster: Cluster) -> None:
    cluster.start_head()
    cluster.start_node("n1")
    wait_for_settings(cluster, "n1")
    blocked = Path(f"{cluster.node_dir('n1') / NAME}.tmp")
    os.mkdir(blocked)  # what is written in its place fails

    assert change(cluster, LIMIT).status == 0

    wait_until(lambda: bool(told(cluster, "n1").problem), what="a refusal")
    assert f"{NAME} cannot be written: " in told(cluster, "n1").problem
    assert setting(cluster, "n1", "job_open_files")[0] == 1024
    os.rmdir(blocked)
    assert run_command("gsched", "reload", head=cluster.socket).status == 0
    wait_for_settings(cluster, "n1")
    assert told(cluster, "n1").problem == ""


def test_a_host_that_joins_starts_with_the_settings_and_states_only_its_own(
    cluster: Cluster,
) -> None:
    """Also keys that need a restart; the note says what the host cannot use."""
    cluster.queues = f"# for nodes\n{LIMIT}job_processes = 5000\n"
    cluster.start_head()
    config = cluster.node_dir("n1") / "gsched.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f'[node]\nstate_dir = "{config.parent}"\n')
    tables = tomllib.loads(config.read_text())

    ran = join(cluster, config)

    assert ran.status == 0, ran.stderr
    assert "note" not in ran.stderr
    address = f"127.0.0.1:{cluster.node_port}"
    own = tables["node"] | {"head": address, "name": "n1"}
    assert tomllib.loads(config.read_text()) == {"node": own}
    kept = read(str(config.parent))
    assert kept.settings == {"node": {"job_open_files": 256, "job_processes": 5000}}
    assert kept.digest == present(cluster)
    cluster.start_node("n1")
    assert setting(cluster, "n1", "job_processes") == (5000, "head", None)
    shown = run_command("gsched", "config", "show", env={"GSCHED_CONFIG": str(config)}).stdout
    assert "job_processes = 5000  # of the head" in shown
    assert "cpus = 0  # default" in shown
    account = pwd.getpwnam("nobody")
    assert not is_administrator(account, configured(read_config(str(config))))
    group = grp.getgrgid(account.pw_gid).gr_name
    assert change(cluster, f"{LIMIT}[login]\nallow_groups = ['{group}']\n").status == 0
    wait_for_settings(cluster, "n1")
    assert is_administrator(account, configured(read_config(str(config))))  # of gnode.pam

    cluster.stop_node("n1")
    assert change(cluster, '[node]\nepilog = "/bin/true"\n').status == 0
    again = join(cluster, config)

    assert again.status == 0
    assert "gnode will take no jobs, as it cannot use the head's settings: " in again.stderr
    assert "epilog = '/bin/true' is not in " in again.stderr


def join(cluster: Cluster, config: Path) -> Ran:
    words = ("gsched", "token", "create", "--role", "node", "--json")
    line = json.loads(run_command(*words, head=cluster.socket).stdout)["line"].split()[2:]
    return run_command("gsched", "join", "--config", str(config), "--name", "n1", *line)


def test_a_gnode_of_before_gets_no_settings_and_is_left_as_it_is(cluster: Cluster) -> None:
    cluster.queues = f"# for nodes\n{LIMIT}"
    cluster.start_head()

    async def come() -> None:
        async with dialled(cluster) as node:
            await node.call()
            before = ConfigRow(path="/etc/gsched/gsched.toml", digest="d", read_s=1.0)
            welcome = await node.register(config=before)
            assert isinstance(welcome, Welcome)
            await asyncio.to_thread(change, cluster, "[node]\nheartbeat_s = 60\n")
            heard = await node.hear_all(timeout_s=1.0)
            assert not [each for each in heard if isinstance(each, ClusterSettings)]
            ran = await asyncio.to_thread(
                run_command, "gnodes", "settings", "n1", head=cluster.socket
            )
            assert ran.status != 0
            assert "the gnode of n1 takes no settings from the head" in ran.stderr

    asyncio.run(come())


def test_an_invalid_request_is_refused_with_the_reason(cluster: Cluster) -> None:
    cluster.start_head()

    def refused(*names: str) -> str:
        ran = run_command("gnodes", "settings", *names, head=cluster.socket)
        assert ran.status != 0
        return ran.stderr

    assert "settings needs at least one node" in refused()
    assert "unknown node 'nope'" in refused("nope")
