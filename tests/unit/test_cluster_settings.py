"""Which keys of nodes are the cluster's, and what counts on a node by its file and the head's."""

from pathlib import Path

import pytest

from gsched.config.cluster import (
    OF_CLUSTER,
    digest_of,
    node_settings,
    overridden,
    read_sent,
    stated,
    with_cluster,
)
from gsched.config.load import ConfigFile, parse_config
from gsched.config.nodes import NodeConfig
from gsched.config.reload import RELOADED, daemon_of
from gsched.config.tables import Config
from gsched.errors import ConfigError

#: Whose jobs run on a node, as whom it obeys, and where it is: never a head's to say.
OWN = ("allow_root_jobs", "min_uid", "head_user", "head", "name", "role", "state_dir", "address")


def file_of(text: str, path: str = "/etc/gsched/gsched.toml") -> ConfigFile:
    return ConfigFile(path=path, config=parse_config(text, where=path), text=text)


def test_all_keys_of_the_table_are_read_by_nodes_and_none_is_the_hosts_own() -> None:
    for table, keys in OF_CLUSTER.items():
        known = type(getattr(Config(), table)).__struct_fields__
        assert set(keys) <= set(known)
        assert len(set(keys)) == len(keys)
        assert {daemon_of(table, key) for key in keys} == {"gnode"}
    assert not {*OWN, "cpus", "gpu", "tmp_dir", "metrics_listen"} & set(OF_CLUSTER["node"])
    assert set(OWN) <= set(NodeConfig.__struct_fields__)
    for table, keys in RELOADED["gnode"].items():  # what a reload applies is the cluster's
        assert set(keys) <= set(OF_CLUSTER[table])


def test_a_head_sends_what_its_file_states_and_nothing_else() -> None:
    head = file_of(
        '[head]\nlease_s = 60\n[node]\nname = "h"\nsample_s = "10s"\nallow_root_jobs = true\n'
        '[containers]\nallowed = ["a"]\nmounts = ["/data"]\n[idle_gpus]\naction = "warn"\n'
        '[[node.health_check]]\nname = "disk"\nprogram = "/etc/gsched/disk"\n[login]\n'
    )

    assert read_sent(stated(head)) == {
        "node": {
            "sample_s": 10.0,
            "health_check": [{"name": "disk", "program": "/etc/gsched/disk"}],
        },
        "containers": {"mounts": ["/data"]},
    }
    two = {"b": {"y": "1", "x": "2"}, "a": {}}
    assert digest_of(two) == digest_of({"a": {}, "b": {"x": "2", "y": "1"}})
    assert digest_of({"a": {"x": "1"}}) != digest_of({"a": {"x": "2"}})
    with pytest.raises(ConfigError, match="cannot be read"):
        read_sent({"node": {"sample_s": "{"}})


def test_the_own_file_has_precedence_and_the_default_is_last() -> None:
    own = file_of('[node]\nsample_s = 3\n[[node.health_check]]\nname = "own"\nprogram = "/bin/a"\n')
    sent = {
        "node": {
            "sample_s": 9.0,
            "heartbeat_s": 60.0,
            "health_check": [{"name": "disk", "program": "/etc/gsched/disk"}],
        }
    }

    config = with_cluster(own, sent)

    assert (config.node.sample_s, config.node.heartbeat_s) == (3.0, 60.0)
    assert [each.name for each in config.node.health_check] == ["own"]
    assert config.node.job_open_files == 1024
    assert list(overridden(own, sent)) == ["[node] sample_s", "[node] health_check"]
    rows = {
        (row.table, row.key): (row.value, row.origin, row.pending)
        for row in node_settings(own.config, config, own, sent, {})
    }
    unused = {"native_supervisor": "no compiler"}
    assert {
        (row.key, row.unused)
        for row in node_settings(own.config, config, own, sent, unused)
        if row.unused
    } == {("native_supervisor", "no compiler")}
    assert rows["node", "sample_s"] == ("3.0", "own", "")
    assert rows["node", "heartbeat_s"] == ("300.0", "head", "60.0")
    assert rows["node", "job_open_files"] == ("1024", "default", "")
    assert rows["node.health_check[0]", "program"] == ('"/bin/a"', "own", "")
    assert ("head", "lease_s") not in rows
    assert ("idle_gpus", "action") not in rows


def test_keys_that_a_head_must_not_set_or_that_are_unknown_here_are_left_out() -> None:
    sent: dict[str, dict[str, object]] = {
        "node": {"allow_root_jobs": True, "min_uid": 1, "of_a_newer_version": 1, "sample_s": 9.0},
        "head": {"socket": "/tmp/x"},
        "of_a_newer_version": {"key": 1},
    }

    config = with_cluster(file_of(""), sent)

    assert not config.node.allow_root_jobs
    assert (config.node.min_uid, config.node.sample_s) == (0, 9.0)
    assert config.head == Config().head


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"job_open_files": 1}, "settings of the head: [node] job_open_files must be an integer"),
        ({"least_spool": "many"}, "settings of the head: [node] least_spool"),
        ({"login_shell": "yes"}, "settings of the head: [node] login_shell must be true or false"),
        ({"health_check": [{"name": "a"}]}, "settings of the head: [[node.health_check]] program"),
        ({"health_check": 1}, "settings of the head: [node] health_check must be a list"),
        ({"prolog": "/bin/sh"}, "[node] prolog = '/bin/sh' is not in /etc/gsched of this host"),
        ({"epilog": "/etc/gsched/../sh"}, "is not in /etc/gsched of this host"),
        ({"prolog": "/etc/gschedx/a"}, "is not in /etc/gsched of this host"),
        ({"prolog": 3}, "settings of the head: [node] prolog must be a string"),
        (
            {"health_check": [{"name": "a", "program": "/bin/sh"}]},
            "[[node.health_check]] a: program = '/bin/sh' is not in /etc/gsched",
        ),
    ],
)
def test_a_wrong_value_of_the_head_is_named(values: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        with_cluster(file_of("[node]\ncpus = 2\n"), {"node": values})

    assert words in refused.value.message
    assert refused.value.hint


def test_programs_of_the_host_may_be_anywhere_if_its_own_file_names_them(tmp_path: Path) -> None:
    own = file_of('[node]\nprolog = "/bin/true"\n', str(tmp_path / "gsched.toml"))
    sent = {"node": {"prolog": "/bin/sh", "epilog": str(tmp_path / "epilog")}}

    config = with_cluster(own, sent)

    assert (config.node.prolog, config.node.epilog) == ("/bin/true", str(tmp_path / "epilog"))
