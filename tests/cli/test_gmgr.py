"""gmgr: queues, their limits and who may use them, on a running head."""

import json
import tomllib
from pathlib import Path

import pytest

from gsched.config.tables import QUEUE_ATTRIBUTES, QueueConfig
from gschedd.core.requests.queues import QueueOverride
from tests.support.cluster import Cluster
from tests.support.commands import Ran, run_command
from tests.support.in_process import run_here
from tests.support.users import made_users
from tests.support.warm import Lender

pytestmark = pytest.mark.timeout(240)
NIGHT = (
    *("max_walltime_s=2:00:00", "priority=-10", "enabled=true", "started=true"),
    *("allow_users=alice,bob", "allow_groups=staff", "deny_users=mallory"),
    *("walltime_extension=50%", "default_memory_per_cpu_bytes=2gb"),
    *("preempt_mode=checkpoint", "preempt_min_run_s=10m"),
)


@pytest.fixture
def head(cluster: Cluster) -> Cluster:
    cluster.start_head()
    return cluster


def gmgr(cluster: Cluster, *words: str, text: str = "") -> Ran:
    return run_command("gmgr", *words, head=cluster.socket, typed=text)


def done(ran: Ran) -> str:
    assert (ran.status, ran.stderr) == (0, "")
    return ran.stdout


def test_an_override_has_each_attribute_of_a_queue() -> None:
    """Or what gmgr sets would be lost without a word."""
    names = set(QueueOverride.__struct_fields__) - {"created"}
    of_file = {"name", "policy", "total", "each_user", "user", "each_project"}  # only in the file
    assert names == set(QUEUE_ATTRIBUTES) == set(QueueConfig.__struct_fields__) - of_file


def test_a_new_queue_has_the_policy_of_the_others(cluster: Cluster) -> None:
    cluster.queues = '[[queue]]\nname = "batch"\npolicy = "fifo"\n'
    cluster.start_head()
    done(gmgr(cluster, "create", "night", "enabled=true", "started=true"))

    exported = tomllib.loads(done(gmgr(cluster, "export")))
    assert [each["policy"] for each in exported["queue"]] == ["fifo", "fifo"]


def test_what_print_prints_makes_the_same_queues_elsewhere(head: Cluster, tmp_path: Path) -> None:
    done(gmgr(head, "create", "night", *NIGHT))
    done(gmgr(head, "set", "batch", "started=false"))
    done(gmgr(head, "set", "server", "scheduling=false"))
    listed = done(gmgr(head, "list", "night"))
    for term in ("max_walltime_s = 02:00:00", "allow_users = alice,bob", "priority = -10"):
        assert f"    {term}\n" in listed
    printed = done(gmgr(head, "print"))

    other = Cluster(tmp_path / "other", head._marker)
    try:
        other.start_head()
        again = gmgr(other, text=printed)
        assert again.status == 0, again.stderr
        assert "queue batch exists already" in again.stderr
        assert done(gmgr(other, "print")) == printed
    finally:
        other.stop()


ALL = (
    "create queue night " + " ".join(NIGHT),
    "set queue batch started=false total.max_running=50 each_user.max_gpus_of.h100=2",
    "set queue batch user.alice.max_walltime_s=90m each_project.max_cpus=64",
    "create project zoo shares=3 users=alice:2,bob coordinators=alice",
    "create project ape parent=zoo 'description=a very, great project' total.max_gpus=16",
    "create project old enabled=false user.a.b.max_running_gpu_hours=2.5",
    "create qos urgent priority=50 preempts=aside preempt_mode=checkpoint allow_projects=ape",
    "create qos aside allow_users=alice each_user.max_memory_bytes=64gb",
    "set user alice max_running=20 max_running_gpu_hours=-1",
    "set server scheduling=false total.max_queued=1000 each_user.max_cpus=512",
)


def test_print_server_makes_the_same_server_elsewhere(head: Cluster, tmp_path: Path) -> None:
    """As of qmgr: its queues, limits, lists of who may, and all else that gmgr sets, at once."""
    done(gmgr(head, text="\n".join(ALL)))
    printed = done(gmgr(head, "-c", "print server"))
    before = json.loads(done(gmgr(head, "list", "--json")))
    assert printed == done(gmgr(head, "print", "server")) == done(gmgr(head, "print"))
    assert "set server scheduling" not in done(gmgr(head, "print", "queue"))
    listed = done(gmgr(head, "list", "server"))
    assert {"scheduling = false", "    each_user.max_cpus = 512"} <= set(listed.splitlines())

    other = Cluster(tmp_path / "other", head._marker)
    try:
        other.start_head()
        again = gmgr(other, text=printed)
        assert again.status == 0, again.stderr
        assert done(gmgr(other, "print", "server")) == printed
        assert json.loads(done(gmgr(other, "list", "--json"))) == before
    finally:
        other.stop()


def test_what_export_prints_is_the_configuration(head: Cluster) -> None:
    """In the file it makes the same queues, once the changes of operators are taken back."""
    done(gmgr(head, "create", "night", *NIGHT))
    exported = done(gmgr(head, "export"))
    before = json.loads(done(gmgr(head, "list", "--json")))["queues"]
    assert [queue["name"] for queue in tomllib.loads(exported)["queue"]] == ["batch", "night"]

    head.stop_head()
    (head.state_dir / "queues.json").unlink()
    head.queues = exported
    head.start_head()

    assert json.loads(done(gmgr(head, "list", "--json")))["queues"] == before
    assert "queue night is configured" in gmgr(head, "delete", "night").stderr


def test_lists_grow_and_shrink_and_unset_lets_the_file_count(head: Cluster) -> None:
    done(gmgr(head, "set", "batch", "allow_users=alice"))
    done(gmgr(head, "set", "batch", "allow_users+=bob,carol", "allow_users-=alice"))
    assert "allow_users = bob,carol" in done(gmgr(head, "list"))
    done(gmgr(head, "unset", "queue", "batch", "allow_users"))
    assert "allow_users" not in done(gmgr(head, "list"))


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (("set", "batch", "max_walltime=3"), 2, "did you mean 'max_walltime_s'?"),
        (("set", "batch", "priority=high"), 2, "write an integer"),
        (("set", "batch", "priority=9999999"), 153, "priority = 9999999: Expected"),
        (("set", "batch", "priority+=1"), 2, "priority is no list"),
        (("set", "batch"), 2, "set: no attribute named"),
        (("set", "none", "enabled=true"), 172, "unknown queue 'none'"),
        (("list", "none"), 172, "unknown queue 'none'"),
        (("crate", "night"), 2, "did you mean 'create'?"),
        (("create", "a b"), 2, "unknown attribute 'b'"),
        (("unset", "batch", "priority=1"), 2, "unset QUEUE ATTRIBUTE"),
        (("set", "batch", "max_walltime_s=1h", "default_walltime_s=2h"), 153, "exceeds max_wallt"),
        (("set", "batch", "walltime_extension=lots"), 153, "invalid value 'lots'"),
    ],
)
def test_mistakes_are_told_and_change_nothing(
    warm: Lender, words: tuple[str, ...], status: int, text: str
) -> None:
    head = warm.head_only()
    before = gmgr(head, "print").stdout
    ran = run_here("gmgr", *words, head=head.socket)

    assert text in ran.stderr
    assert ran.status == status or status == 153
    assert ran.status != 0
    assert gmgr(head, "print").stdout == before


def test_a_command_is_one_text_as_of_qmgr(head: Cluster) -> None:
    done(gmgr(head, "-c", "create queue night enabled=true", "-c", "set queue night priority = 7"))
    listed = done(gmgr(head, "-c", "list queue night"))
    assert "priority = 7" in listed

    wrong = (
        (("-c", "set night priority=9", "-c", "sett night priority=8"), "did you mean 'set'?"),
        (("-c", "set night priority=9", "-c", "list"), "run: gmgr list"),
        (("-c", "set night priority=9", "list"), "omit -c: gmgr set night priority=9"),
        (("-c", "set night 'priority=9"), "close the quotation mark"),
    )
    for words, hint in wrong:
        ran = gmgr(head, *words)
        assert (ran.status, hint in ran.stderr) == (2, True), ran.stderr
    assert done(gmgr(head, "list", "night")) == listed


def test_commands_of_standard_input_are_carried_out_all_or_none(warm: Lender) -> None:
    head = warm.head_only()
    text = "create night\n# a comment\nset night priority=3\nset none priority=3\n"
    assert "unknown queue 'none'" in gmgr(head, text=text).stderr
    assert "night" not in done(gmgr(head, "list"))
    assert done(gmgr(head, "--dry-run", "create", "night")) == ""
    assert "night" not in done(gmgr(head, "list"))


def test_who_may_not_use_a_queue_is_refused_with_a_sentence(process_marker: str) -> None:
    """At submission and by gmove; by user, by group, and whatever groups say if denied."""
    with made_users(Cluster, process_marker) as (cluster, users):
        ann, bob = users.add("annx"), users.add("bobx", groups=[72001])
        cluster.start_head()
        done(gmgr(cluster, "create", "night", "enabled=true", "allow_users=annx"))
        night = users.submit(cluster, ann, "-q", "night", "--", "true")
        batch = users.submit(cluster, bob, "--", "true")
        sentence = "bobx may not use queue night: it is for users annx"
        assert sentence in users.run(cluster, bob, "gsub", "-q", "night", "--", "true").stderr
        moved = users.run(cluster, bob, "gmove", "night", str(batch))
        assert (moved.status, sentence in moved.stderr) == (159, True)
        assert sentence in users.run(cluster, bob, "galter", "-q", "night", str(batch)).stderr

        done(gmgr(cluster, "set", "night", "allow_groups=test72001"))
        assert users.run(cluster, bob, "gmove", "night", str(batch)).status == 0
        done(gmgr(cluster, "set", "night", "deny_users=bobx"))
        refused = users.run(cluster, bob, "gsub", "-q", "night", "--", "true")
        assert "its deny_users names this user" in refused.stderr
        assert cluster.head.job(night).row.queue == cluster.head.job(batch).row.queue == "night"
        only_operators = users.run(cluster, bob, "gmgr", "set", "night", "deny_users=")
        assert (only_operators.status, only_operators.stdout) == (159, "")
        assert (
            "users annx; groups test72001; not bobx"
            in users.run(cluster, bob, "gstat", "-Q").stdout
        )
        listed = run_here("qstat", "-Q", "-f", "night", head=cluster.socket).stdout
        assert "acl_users = annx" in listed
        assert "acl_group_enable = True" in listed
        run_here("qmgr", "-c", "set queue night acl_user_enable = False", head=cluster.socket)
        assert "allow_users" not in done(gmgr(cluster, "list", "night"))


def test_a_refusal_names_the_line_and_nothing_was_done(warm: Lender) -> None:
    """All that cannot be read is told at once; what the head refuses is one command."""
    head = warm.head_only()
    text = "create night\n# a comment\nset night priorty=1\n\nset night\nset night priority=2\n"
    wrong = gmgr(head, text=text)
    assert wrong.status == 2
    assert "gmgr: line 3: unknown attribute 'priorty' of a queue (" in wrong.stderr
    assert "line 5: set: no attribute named; no command was carried out" in wrong.stderr
    refused = gmgr(head, text="create night\nset night priority=2\nset night priority=many\n")
    assert refused.status != 0
    assert "line 3: " in refused.stderr
    assert "no command was carried out" in refused.stderr
    second = gmgr(head, "-c", "set batch started=false", "-c", "set nowhere started=true")
    assert "command 2: unknown queue" in second.stderr
    unclosed = gmgr(head, text='create night\ncreate "day\n')
    assert 'gmgr: line 2: create "day: no closing quotation; no command' in unclosed.stderr
    assert len(unclosed.stderr.splitlines()) == 2  # with the hint
    unlike = gmgr(head, "set", "batch", "colour=red")
    assert "valid: priority, " in unlike.stderr
    assert "and others: see gmgr(1)" in unlike.stderr
    assert len(unlike.stderr) < 250
    single = gmgr(head, "set", "nowhere", "started=true")
    assert "command" not in single.stderr
    assert "line" not in single.stderr
    assert "night" not in done(gmgr(head, "list"))
    assert "started = false" not in done(gmgr(head, "list", "batch"))


def test_a_dry_run_asks_the_head(warm: Lender) -> None:
    head = warm.head_only()
    assert done(gmgr(head, "-n", text="create night\nset night priority=2\n")) == ""
    assert "night" not in done(gmgr(head, "list"))
    refused = gmgr(head, "-n", text="create night\ncreate batch\ndelete other\n")
    assert refused.status != 0
    assert "line 3: unknown queue" in refused.stderr
