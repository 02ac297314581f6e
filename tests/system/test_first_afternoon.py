"""The mistakes of an administrator's first afternoon: each has a name, and is made in reality.

`MADE` says which test makes each of them; those that no other module makes are here.
"""

import ast
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from gnode.compiling import find_compiler
from gsched.pki import issuing
from gsched.pki.files import AUTHORITY, DIRECTORY, OWN, TRUSTED
from tests.support.cluster import ROOT, Cluster, wait_until
from tests.support.commands import Ran, run_command
from tests.support.disks import fill, free, small_disk
from tests.support.forks import Wrapper
from tests.support.gpu_fixtures import needs_compiler

HERE = "tests/system/test_first_afternoon.py"
JOINING = "tests/system/test_joining.py"
ATTACKS = "tests/system/test_node_channel_attacks.py"
#: Mistake: the tests that make it.
MADE = {
    "a line of gsched token create that was cut, changed or is of another cluster": (
        (JOINING, "test_t63_each_way_in_which_a_line_does_not_count_is_explained"),
    ),
    "a token that has expired, was used, or is for another name": (
        (JOINING, "test_t63_each_way_in_which_a_line_does_not_count_is_explained"),
    ),
    "a port that is closed, or that of another service": (
        (JOINING, "test_t63_each_way_in_which_a_line_does_not_count_is_explained"),
        (ATTACKS, "test_a_head_that_is_not_there_is_one_line_of_the_log"),
        (
            "tests/system/test_https.py",
            "test_a_host_that_joins_at_the_port_for_programs_is_shown_the_way",
        ),
    ),
    "a name that another host has": (
        (JOINING, "test_a_name_in_use_is_for_the_host_that_has_its_key_or_takes_its_place"),
        (JOINING, "test_a_login_host_joins_by_one_line_and_keeps_its_name"),
    ),
    "a clock that is wrong": (
        (HERE, "test_a_wrong_clock_is_named_and_the_token_stays_valid"),
        (ATTACKS, "test_an_hour_between_the_clocks_keeps_no_node_away"),
        (ATTACKS, "test_a_certificate_out_of_its_time_ends_the_handshake_and_is_logged"),
    ),
    "users with other numbers": (
        ("tests/system/test_commands_on_nodes.py", "test_users_are_refused_whose_number_differs"),
    ),
    "a full disk": (
        (HERE, "test_a_host_with_a_full_disk_keeps_its_token"),
        (
            "tests/system/test_gnode_full_disk.py",
            "test_gnode_starts_on_a_full_spool_and_works_when_space_returns",
        ),
    ),
    "a host that was renamed": (
        (HERE, "test_a_host_that_was_renamed_keeps_its_name_in_the_cluster"),
        (ATTACKS, "test_a_wrong_certificate_is_explained_by_its_node"),
    ),
    "a certificate that was deleted": (
        (HERE, "test_a_node_whose_certificate_was_deleted_gets_a_new_one"),
        (HERE, "test_a_head_whose_certificates_were_deleted_makes_them_again"),
    ),
    "a key that others can read": (
        (JOINING, "test_t61_a_head_whose_authority_others_can_read_does_not_start"),
        ("tests/system/test_gnode_orders.py", "test_a_key_that_others_can_read_is_refused"),
    ),
    "a second head with an authority of its own": (
        (
            "tests/system/test_standby_authority.py",
            "test_a_second_head_with_an_authority_of_its_own_does_not_stand_by",
        ),
    ),
}
#: The time of day is wrong by so many days.
WRONG_CLOCK = """
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += DAYS * 86400L;
    return result;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""


def line_for(cluster: Cluster, *words: str) -> list[str]:
    made = run_command(
        *("gsched", "token", "create", "--role", "node", *words, "--json"), head=cluster.socket
    )
    assert made.status == 0, made.stderr
    return str(json.loads(made.stdout)["line"]).split()[2:]


def join(cluster: Cluster, line: list[str], name: str, env: dict[str, str] | None = None) -> Ran:
    config = cluster.directory / f"{name}.join.toml"
    if not config.exists():
        config.write_text(f'[node]\nname = "{name}"\nstate_dir = "{cluster.node_dir(name)}"\n')
    ran = run_command("gsched", "join", "--config", str(config), *line, env=env)
    assert "Traceback" not in ran.stderr
    assert "internal" not in ran.stderr
    return ran


def test_each_mistake_is_made_by_a_test_that_is_there() -> None:
    for tests in MADE.values():
        for path, name in tests:
            tree = ast.parse((ROOT / path).read_text())
            assert name in {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}


@needs_compiler
@pytest.mark.parametrize(
    ("days", "words"), [(-60, "is not valid yet"), (200, "has expired")], ids=["behind", "ahead"]
)
def test_a_wrong_clock_is_named_and_the_token_stays_valid(
    cluster: Cluster, tmp_path: Path, days: int, words: str
) -> None:
    compiler = find_compiler()
    assert compiler is not None
    source, shim = tmp_path / "clock.c", tmp_path / "clock.so"
    source.write_text(WRONG_CLOCK)
    build = [compiler, "-shared", "-fPIC", f"-DDAYS=({days})", str(source), "-o", str(shim)]
    subprocess.run(build, check=True)
    cluster.start_head()
    line = line_for(cluster)

    ran = join(cluster, line, "n1", {"LD_PRELOAD": str(shim), "GSCHED_TEST_NO_FORKS": "1"})

    assert ran.status == 69, ran.stderr
    assert f"the certificate of the head {words}" in ran.stderr
    assert "compare the clocks of both hosts (timedatectl)" in ran.stderr
    assert join(cluster, line, "n1").status == 0


def test_a_host_with_a_full_disk_keeps_its_token(cluster: Cluster) -> None:
    cluster.start_head()
    line = line_for(cluster)
    with small_disk(cluster.node_dir("n1"), "1m") as disk:
        fill(disk)
        ran = join(cluster, line, "n1")
        assert ran.status == 73, ran.stderr
        assert "No space left on device" in ran.stderr
        assert str(disk / DIRECTORY) in ran.stderr
        assert "the token was not used" in ran.stderr
        free(disk)
        assert join(cluster, line, "n1").status == 0
        assert sorted(each.name for each in (disk / DIRECTORY).iterdir()) == [OWN, TRUSTED]


def test_a_host_that_was_renamed_keeps_its_name_in_the_cluster(cluster: Cluster) -> None:
    """gsched join has written its name; a machine's other name is nobody's business."""
    cluster.start_head()
    cluster.start_node("n1")
    cluster.stop_node("n1")
    words = ("unshare", "--uts", "sh", "-c", 'hostname renamed && exec "$@"', "sh")
    cluster.wrapper = Wrapper(words)
    cluster.start_node("n1")

    assert [row.name for row in cluster.head.nodes().nodes] == ["n1"]
    joined = join(cluster, line_for(cluster), "n1")
    assert joined.status == 0, joined.stderr
    assert "this host is now node n1" in joined.stdout


def test_a_node_whose_certificate_was_deleted_gets_a_new_one(cluster: Cluster) -> None:
    """Each message leads to the next step: gnode's log, gsched token create, gsched join."""
    cluster.start_head()
    cluster.start_node("n1")
    cluster.stop_node("n1")
    pki = cluster.node_dir("n1") / DIRECTORY
    (pki / OWN).unlink()
    cluster.node_tables = "[tls]\n"  # the test's own certificates are not given again
    cluster.start_node("n1", wait=False)
    said = f"has no certificate in {pki / OWN}"
    wait_until(lambda: said in cluster.log("n1.log"), what="the reason")
    assert "gsched token create --role node --name n1" in cluster.log("n1.log")
    words = ("gsched", "token", "create", "--role", "node", "--name", "n1")
    created = run_command(*words, head=cluster.socket)
    assert "--replace" in created.stderr
    refused = join(cluster, created.stdout.split()[2:], "n1")
    assert refused.status == 159
    assert "this host does not have its key" in refused.stderr
    assert "has lost its key" in refused.stderr

    joined = join(cluster, line_for(cluster, "--name", "n1", "--replace"), "n1")

    assert joined.status == 0, joined.stderr
    cluster.wait_for_node("n1")


def test_a_head_whose_certificates_were_deleted_makes_them_again(cluster: Cluster) -> None:
    """Without its authority, too; then the messages say that hosts have to join again."""
    cluster.start_head()
    cluster.start_node("n1")
    pki = cluster.state_dir / DIRECTORY
    assert cluster.stop_head() == 0
    for name in (OWN, TRUSTED):
        (pki / name).unlink()
    cluster.start_head()
    cluster.wait_for_node("n1")
    assert cluster.stop_head() == 0
    before = (pki / AUTHORITY).read_bytes()
    shutil.rmtree(pki)

    cluster.start_head()

    assert (pki / AUTHORITY).read_bytes() != before
    assert "hosts that have joined by another one have to join again" in cluster.log("head.log")
    wait_until(
        lambda: "of an authority that is not trusted here" in cluster.log("n1.log"),
        what="the node's reason",
    )
    joined = join(cluster, line_for(cluster, "--name", "n1", "--replace"), "n1")
    assert joined.status == 0, joined.stderr
    cluster.wait_for_node("n1")
    assert issuing.is_issued_by(
        (cluster.node_dir("n1") / DIRECTORY / OWN).read_bytes(), (pki / TRUSTED).read_text()
    )
