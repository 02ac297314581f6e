"""The files of a throw-away cluster: where they lie, what is in them, how it grows."""

import os
import stat
import tomllib
from pathlib import Path

import msgspec
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gsched.cli.local import cluster
from gsched.cli.local.layout import ClusterLayout, default_directory, layout_of
from gsched.cli.local.toml import head_toml, node_toml, with_value, write_file
from gsched.config.nodes import GpuConfig, NodeConfig
from gsched.config.tables import Config, HeadConfig, QueueConfig
from gsched.errors import BadResourceError, CannotWriteError, ConfigError, UsageError
from gsched.model.units import parse_size_bytes

text = st.text(st.characters(codec="utf-8"), max_size=20)
heads = st.builds(
    HeadConfig,
    server_name=st.from_regex(r"([A-Za-z0-9][A-Za-z0-9._-]{0,254})?", fullmatch=True),
    socket=text,
    node_port=st.integers(0, 65535),
    operators=st.lists(text, max_size=3).map(tuple),
    single_user=st.booleans(),
    node_timeout_s=st.floats(0.1, 1e6),
)
nodes = st.builds(
    NodeConfig,
    name=st.from_regex(r"([A-Za-z0-9][A-Za-z0-9._-]{0,63})?", fullmatch=True),
    cpus=st.integers(0, 512),
    gpu=st.lists(st.builds(GpuConfig, count=st.integers(0, 16), type=text), max_size=2).map(tuple),
    features=st.lists(st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]*", fullmatch=True), max_size=2).map(
        tuple
    ),
    resources=st.dictionaries(text, st.integers(0, 9), max_size=2),
    enforce_memory=st.booleans(),
)


@given(
    heads,
    st.lists(
        st.builds(QueueConfig, name=text, priority=st.integers(-1_000_000, 1_000_000)), max_size=2
    ),
)
def test_a_written_head_configuration_reads_back_the_same(
    head: HeadConfig, queues: list[QueueConfig]
) -> None:
    """Whatever text stands in it."""
    raw = tomllib.loads(head_toml(head, tuple(queues)))

    read = msgspec.convert(raw | {"queue": raw.get("queue", [])}, Config)
    assert read.head == head
    assert read.queue == tuple(queues)


@given(nodes)
def test_a_written_node_configuration_reads_back_the_same(node: NodeConfig) -> None:
    """Also tables within it."""
    assert msgspec.convert(tomllib.loads(node_toml(node)), Config).node == node


def test_a_file_is_replaced_whole_and_with_its_mode(tmp_path: Path) -> None:
    """No half-written file, no temporary one left, secret from the first byte on."""
    path = tmp_path / "key"
    write_file(path, "one", mode=0o600)
    write_file(path, "two", mode=0o600)

    assert path.read_text() == "two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["key"]
    with pytest.raises(CannotWriteError, match="cannot be written"):
        write_file(tmp_path / "no" / "key", "x")


def test_the_default_directory_follows_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the XDG base directory rules have it for state."""
    monkeypatch.setenv("XDG_STATE_HOME", "/var/state")
    assert default_directory() == Path("/var/state/gsched")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/users/x")
    assert default_directory() == Path("/users/x/.local/state/gsched")


def test_a_directory_too_deep_for_a_socket_is_refused_with_the_excess() -> None:
    """107 bytes are the most that a Unix socket's path can have."""
    fits = "/" + "d" * (107 - len("//head-node.sock"))
    assert len(str(layout_of(fits).node_socket)) == 107
    with pytest.raises(UsageError, match="111 bytes; the limit of the system is 107") as caught:
        layout_of(fits + "dddd")
    assert "at least 4 bytes shorter" in caught.value.hint


@pytest.fixture
def layout(tmp_path: Path) -> ClusterLayout:
    """Return the layout of a cluster that has a head's configuration, but no node."""
    layout = ClusterLayout(directory=tmp_path / "c")
    cluster.make_directory(layout)
    cluster.write_head(layout, Config(head=cluster.new_head(layout)))
    return layout


def test_root_may_submit_to_its_own_cluster_and_others_are_alone_in_theirs(
    layout: ClusterLayout,
) -> None:
    """A cluster without root can run jobs as its own user only."""
    head = cluster.read_head(layout).head
    assert head.allow_root_jobs is (os.geteuid() == 0)
    assert head.single_user is (os.geteuid() != 0)
    assert 20000 <= head.master_port_first < head.master_port_last <= 29999


def test_a_foreign_configuration_is_not_taken_for_a_cluster(layout: ClusterLayout) -> None:
    """Or `gsched up --dir /etc/gsched` would start a site's head."""
    layout.config.write_text('[head]\nsocket = "/run/gsched/head.sock"\n')
    with pytest.raises(ConfigError, match="not a cluster of `gsched up`"):
        cluster.read_head(layout)


def test_nodes_share_the_machine_unless_told_otherwise(layout: ClusterLayout) -> None:
    """Four nodes do not offer four times the memory, nor four times the same real GPUs."""
    assert cluster.add_nodes(layout, cluster.ClusterRequest(nodes=2)) == ("n1", "n2")

    configs = [cluster.read_node(node) for node in layout.nodes()]
    assert [config.head for config in configs] == [f"unix:{layout.directory}/head-node.sock"] * 2
    assert [config.state_dir for config in configs] == [
        str(layout.directory / "nodes/n1"),
        str(layout.directory / "nodes/n2"),
    ]
    total = sum(parse_size_bytes(config.memory) for config in configs)
    assert 0 < total <= psutil.virtual_memory().total
    assert all(config.cpus >= 1 for config in configs)
    assert all(config.gpu == (GpuConfig(count=0),) for config in configs)


def test_a_single_node_may_find_its_real_gpus(layout: ClusterLayout) -> None:
    """With nothing declared, gnode asks NVML."""
    cluster.add_nodes(layout, cluster.ClusterRequest())
    assert cluster.read_node(layout.node("n1")).gpu == ()


def test_growing_keeps_what_is_there_and_copies_it(layout: ClusterLayout) -> None:
    """n3 is like n1 where nothing else was said; n1 itself does not change."""
    first = cluster.ClusterRequest(nodes=2, cpus=3, gpus=4, gpu_type="a100", memory="2gb")
    cluster.add_nodes(layout, first)
    before = layout.node("n1").config.read_bytes()

    added = cluster.add_nodes(layout, cluster.ClusterRequest(nodes=12, gpus=1))

    assert added == tuple(f"n{number}" for number in range(3, 13))
    assert [node.name for node in layout.nodes()] == [f"n{number}" for number in range(1, 13)]
    assert layout.node("n1").config.read_bytes() == before
    new = cluster.read_node(layout.node("n3"))
    assert (new.cpus, new.memory, new.gpu) == (3, "2gb", (GpuConfig(count=1, type="a100"),))
    assert cluster.add_nodes(layout, cluster.ClusterRequest()) == ()


def test_what_differs_from_the_stored_is_told(layout: ClusterLayout) -> None:
    """The stored configuration wins; the caller must know."""
    cluster.add_nodes(layout, cluster.ClusterRequest(nodes=2, cpus=3, gpus=1, memory="2gb"))

    same = cluster.ClusterRequest(nodes=2, cpus=3, gpus=1, memory="2048mb", gpu_type="declared")
    assert cluster.differences(layout, same) == ()
    assert cluster.differences(layout, cluster.ClusterRequest()) == ()
    told = cluster.differences(layout, cluster.ClusterRequest(nodes=1, cpus=8, memory="4gb"))
    assert told[0] == "the cluster has 2 nodes; --nodes 1 does not remove any"
    assert told[1].startswith("nodes n1, n2 keep their --cpus 3: edit ")
    assert told[2].startswith("nodes n1, n2 keep their --memory 2gb: edit ")
    assert told[1].endswith("/NODE/gnode.toml and repeat this command, or choose another --dir")


def test_policies_and_shares_change_in_a_cluster_that_exists(layout: ClusterLayout) -> None:
    """What the user wrote stays, comments included; a new node is like the others."""
    cluster.add_nodes(layout, cluster.ClusterRequest(nodes=1, gpus=2))
    with layout.config.open("a") as file:
        file.write('# mine\n[[queue]]\nname = "long"\n\n[history]\nlearn = false\n')

    assert cluster.set_policies(layout, ("goodput", "fifo")) == (
        "the policy of training jobs is now goodput instead of deadline",
        "the policy of the queues is now fifo instead of balance",
    )
    assert cluster.set_policies(layout, ("goodput", "fifo")) == ()
    assert cluster.set_share(layout, "colocate") == ("node n1 shares GPUs now: colocate",)
    assert cluster.set_share(layout, "colocate") == ()
    cluster.add_nodes(layout, cluster.ClusterRequest(nodes=2))
    assert cluster.read_share(layout.node("n2")) == "colocate"
    assert cluster.set_share(layout, "none")[1] == "node n2 shares no GPUs any more"

    config = cluster.read_head(layout)
    assert [(queue.name, queue.policy) for queue in config.queue] == [
        ("batch", "fifo"),
        ("long", "fifo"),
    ]
    assert (config.training.policy, config.history.learn) == ("goodput", False)
    assert "# mine\n" in layout.config.read_text()
    cluster.pin_port(layout, 4713, layout.nodes())
    assert (cluster.read_head(layout).training.policy, "# mine\n" in layout.config.read_text()) == (
        "goodput",
        True,
    )


def test_a_policy_is_set_where_the_file_names_no_queue(layout: ClusterLayout) -> None:
    """The queue that there is without any keeps its name."""
    text = layout.config.read_text()
    layout.config.write_text(text.partition("[[queue]]")[0])

    cluster.set_policies(layout, ("fifo",))

    assert [(each.name, each.policy) for each in cluster.read_head(layout).queue] == [
        ("batch", "fifo")
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", '\n[training]\npolicy = "sia"\n'),
        ("[training]\n", '[training]\npolicy = "sia"\n'),
        ('[training]\npolicy="drs" # x\n', '[training]\npolicy = "sia"\n'),
        ('training.policy = "drs"\n', 'training.policy = "sia"\n'),
        ("[training.sia]\np = 1\n", '[training.sia]\np = 1\n\n[training]\npolicy = "sia"\n'),
    ],
)
def test_one_value_of_a_file_is_replaced(text: str, expected: str) -> None:
    """Whatever way of TOML the file uses."""
    changed = with_value(text, ("training", "policy"), "sia", where="x")

    assert changed == expected
    assert tomllib.loads(changed)["training"]["policy"] == "sia"


def test_a_value_in_an_inline_table_is_left_to_its_author() -> None:
    """With its line."""
    with pytest.raises(ConfigError, match="x:1: training is stated in a form") as refused:
        with_value('training = { policy = "drs" }\n', ("training", "policy"), "sia", where="x")

    assert "edit it by hand" in refused.value.hint


def test_pinning_the_port_changes_files_only_if_it_changed(layout: ClusterLayout) -> None:
    """A configuration newer than its daemon makes `up` restart it."""
    cluster.add_nodes(layout, cluster.ClusterRequest(nodes=1))
    cluster.pin_port(layout, 4711, layout.nodes())
    before = layout.node("n1").config.stat().st_ino

    cluster.pin_port(layout, 4711, layout.nodes())
    assert layout.node("n1").config.stat().st_ino == before
    cluster.pin_port(layout, 4712, layout.nodes())
    assert cluster.read_head(layout).head.node_port == 4712
    assert cluster.read_node(layout.node("n1")).head == f"unix:{layout.directory}/head-node.sock"


@pytest.mark.parametrize(
    ("wanted", "kind"),
    [
        (cluster.ClusterRequest(nodes=0), UsageError),
        (cluster.ClusterRequest(nodes=257), UsageError),
        (cluster.ClusterRequest(cpus=0), UsageError),
        (cluster.ClusterRequest(gpus=-1), UsageError),
        (cluster.ClusterRequest(memory="lots"), BadResourceError),
        (cluster.ClusterRequest(memory="10kb"), UsageError),
        (cluster.ClusterRequest(policies=("godput",)), UsageError),
        (cluster.ClusterRequest(policies=("goodput", "sia")), UsageError),
        (cluster.ClusterRequest(share="colo"), UsageError),
    ],
)
def test_impossible_clusters_are_refused(
    wanted: cluster.ClusterRequest, kind: type[UsageError]
) -> None:
    """Before anything is written."""
    with pytest.raises(kind):
        cluster.check_wanted(wanted)


def test_new_nodes_give_jobs_no_new_privileges_and_those_of_an_older_cluster_as_before(
    layout: ClusterLayout,
) -> None:
    """The file says what that means."""
    cluster.add_nodes(layout, cluster.ClusterRequest(nodes=1))
    text = layout.node("n1").config.read_text()
    assert "# sudo, ping, newgrp and mount.fuse fail in jobs; false lets them work\n" in text
    assert cluster.read_node(layout.node("n1")).no_new_privileges
    older = msgspec.structs.replace(cluster.read_node(layout.node("n1")), no_new_privileges=False)
    cluster.write_node(layout.node("n1"), older)
    cluster.add_nodes(layout, cluster.ClusterRequest(nodes=2))

    assert not cluster.read_node(layout.node("n2")).no_new_privileges


@pytest.mark.parametrize(("cpus", "gpus", "warns"), [(1, 4, True), (4, 4, False), (2, 0, False)])
def test_fewer_cpus_than_gpus_are_told(tmp_path: Path, cpus: int, gpus: int, warns: bool) -> None:  # noqa: FBT001 - a column
    """A job takes a CPU at least, so some of these GPUs would stay free."""
    layout = ClusterLayout(directory=tmp_path / "c")
    cluster.make_directory(layout)
    wanted = cluster.ClusterRequest(nodes=2, cpus=cpus, gpus=gpus)
    cluster.write_head(layout, Config(head=cluster.new_head(layout)))
    names = cluster.add_nodes(layout, wanted)

    notes = cluster.few_cpus(layout, names)
    assert bool(notes) is warns
    for note in notes:
        assert "each new node has 1 CPU and 4 GPUs, so at most 1 job can run there" in note
        assert "--cpus 4" in note
    assert cluster.few_cpus(layout, ()) == ()
