"""The configuration file: every mistake has an answer that names it."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gsched.config.environment import environment, full_environment
from gsched.config.load import load_config, parse_config
from gsched.config.tables import Config
from gsched.errors import ConfigError


def test_a_file_is_read(tmp_path: Path) -> None:
    """Tables become structs, what is missing has its default."""
    path = tmp_path / "gsched.toml"
    path.write_text('[head]\nserver_name = "c1"\n[[queue]]\nname = "a"\npriority = 3\n')

    config = load_config(str(path))

    assert (config.head.server_name, config.queue[0].priority) == ("c1", 3)
    assert config.node.heartbeat_s == 300.0


def test_no_file_at_the_default_place_means_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that was named must be there."""
    monkeypatch.delenv("GSCHED_CONFIG", raising=False)
    monkeypatch.setattr("gsched.config.environment.DEFAULT_CONFIG", str(tmp_path / "none.toml"))
    assert load_config(None) == Config()

    missing = str(tmp_path / "other.toml")
    with pytest.raises(ConfigError, match="no such file"):
        load_config(missing)
    monkeypatch.setenv("GSCHED_CONFIG", missing)
    with pytest.raises(ConfigError, match="no such file"):
        load_config(None)


def test_only_a_regular_file_of_a_bounded_size_is_read(tmp_path: Path) -> None:
    """None that blocks, or has no end."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (str(tmp_path), str(pipe), "/dev/zero"):
        with pytest.raises(ConfigError, match=f"{path}: cannot be read: not a regular file"):
            load_config(path)
    (tmp_path / "latin").write_bytes(b"# \xff\n")
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        load_config(str(tmp_path / "latin"))
    assert "must be UTF-8" in caught.value.hint
    large = tmp_path / "large"
    with large.open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(ConfigError, match=r"more than 4mb"):
        load_config(str(large))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A directory, or bytes that are no text."""
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")

    for path in (tmp_path, binary):
        with pytest.raises(ConfigError, match="cannot be read") as refused:
            load_config(str(path))
        assert refused.value.message.startswith(str(path))


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        # syntax, names and types
        ("[head\n", ": Expected ']' at the end of a table declaration (at line 1", "TOML"),
        ("[head]\nsokcet = '/x'\n", ":2: [head] has no key 'sokcet'", "did you mean 'socket'?"),
        (
            "[head]\nzzzzzz = 1\n",
            ":2: [head] has no key 'zzzzzz'",
            "valid keys: server_name, socket",
        ),
        ("[head]\ncgroup = 'x'\n", "[head] has no key 'cgroup'", "'cgroup' is a key of [node]"),
        ("[moves]\nat_onec = 1\n", "[moves] has no key 'at_onec'", "did you mean 'at_once'?"),
        ("[[queue]]\nnaem = 'a'\n", ":2: [[queue]] has no key 'naem'", "did you mean 'name'?"),
        ("[[node.gpu]]\ncuont = 1\n", "[[node.gpu]] has no key 'cuont'", "did you mean 'count'?"),
        ("[[fabric.link]]\nnode = 1\n", "[[fabric.link]] has no key 'node'", "mean 'nodes'?"),
        ("[balance.weights]\ngpumemory = 1\n", "has no key 'gpumemory'", "mean 'gpu_memory'?"),
        ("[[health_check]]\nname = 'a'\n", ":1: unknown table", "write [[node.health_check]]"),
        (
            "[[node.health_check]]\nname = 'a b'\nprogram = '/x'\n",
            ":2: [[node.health_check]] name: invalid name 'a b'",
            "write at most 32 lower-case letters",
        ),
        (
            "[power]\nsuspend_program = '/x'\n",
            ":2: [power] suspend_program needs resume_program",
            "give both",
        ),
        ("[hed]\nx = 1\n", ":1: unknown table or key 'hed'", "did you mean 'head'?"),
        ("node_port = 1\n", ":1: unknown table or key 'node_port'", "is a key of [head]"),
        ("[node]\ncpus = 'x'\n", ":2: [node] cpus must be an integer, got 'x'", ""),
        ("[node]\ncpus = 1.5\n", "must be an integer from 0 to 65536, got 1.5", ""),
        ("[head]\nsocket = 1\n", "[head] socket must be a string in quotation marks, got 1", ""),
        ("[head]\nsingle_user = 1\n", "[head] single_user must be true or false, got 1", ""),
        ("[head]\noperators = 'a'\n", "[head] operators must be a list in brackets, got 'a'", ""),
        ("head = 1\n", ":1: head must be a table, got 1", ""),
        ("[queue]\nname = 'a'\n", ":1: queue must be a list of tables", "write [[queue]]"),
        ("[head]\nnode_port = true\n", "node_port must be an integer, got true", ""),
        ("[node]\ntmp_dir = 'scratch'\n", "tmp_dir: relative path 'scratch'", "absolute"),
        ("[notify]\nsendmail = 'mail -t'\n", "sendmail: relative path 'mail -t'", "absolute"),
        ("\n[[queue]]\npriority = 1\n", ":2: [[queue]] name is missing", "write name = ..."),
        ("[node]\nresources = { lic = -1 }\n", ":2: [node] resources", "gsched.toml(5)"),
        # ranges
        ("[head]\nnode_port = 99999999\n", ":2: [head] node_port must be an integer from 0 to", ""),
        ("[head]\nnode_timeout_s = -1\n", "[head] node_timeout_s must be from 0.1 to", "toml(5)"),
        ("[node]\ncpus = -4\n", "[node] cpus must be an integer from 0 to 65536, got -4", ""),
        ("[node]\nheartbeat_s = 0\n", "[node] heartbeat_s must be from 0.05 to 86400, got 0", ""),
        ("[node]\nsample_s = nan\n", "[node] sample_s must be from 0.05 to 86400, got nan", ""),
        ("[history]\nkeep_days = inf\n", "[history] keep_days must be from 0 to 36500", ""),
        ("[training]\nshare_for_others = 1.0\n", "must be from 0 to below 1, got 1.0", ""),
        (
            "[training.drs]\nmoves_max = -1\n",
            "[training.drs] moves_max must be an integer from 0",
            "",
        ),
        ("[training.drs]\npatience_s = nan\n", "[training.drs] patience_s must be from 0", ""),
        ("[head]\nmaster_port_first = 80\n", "master_port_first must be an integer from 1024", ""),
        ("[balance]\nweights.gpu = -0.5\n", "[balance.weights] gpu must be from 0 to 1000000", ""),
        ("[balance.weights]\ncpu = nan\n", ":2: [balance.weights] cpu must be from 0 to", ""),
        ("[balance.weights]\ncpu = inf\n", "[balance.weights] cpu must be from 0 to", ""),
        ("[balance]\nwindow_s = -1\n", "[balance] window_s must be from 0 to 86400, got -1", ""),
        # projects
        (
            "[[project]]\nname='a'\nparent='b'\n[[project]]\nname='b'\nparent='a'\n",
            ":3: [[project]] parent makes a circle: a is below b is below a",
            "give one of them another parent",
        ),
        ("[[project]]\nname='a'\nparent='b'\n", "parent: unknown project 'b'", 'or "root"'),
        ("[[project]]\nname='a'\nshares=0\n", "[[project]] shares must be an integer from 1", ""),
        (
            "[[project]]\nname='a'\nusers={b=-1}\n",
            ":3: [[project]] users: each value must be an integer >= 1",
            "",
        ),
        (
            "[[queue]]\nname='a'\n[queue.total]\nmax_runing=2\n",
            ":4: [queue.total] has no key 'max_runing'",
            "did you mean 'max_running'?",
        ),
        (
            "[[queue]]\nname='a'\n[queue.user.bob]\nmax_gpus=-2\n",
            "[queue.user] max_gpus must be a number >= -1",
            "",
        ),
        (
            "[limits]\ntotal={max_running='2'}\n",
            ":2: [limits.total] max_running must be an integer, got '2'",
            "",
        ),
        ("[[project]]\nname='a'\nusers={ x = -1 }\n", "[[project]] users", ""),
        ("[[project]]\nname='root'\n", "name: 'root' is the top of the tree", "another name"),
        ("[[project]]\nname='a b'\n", "name: invalid name 'a b'", "use letters"),
        (
            "[[project]]\nname='a'\n[[project]]\nname='a'\n",
            ":4: [[project]] name: duplicate name 'a'",
            "remove one",
        ),
        ("[[project]]\nname='a'\nusers=['x', 'x']\n", "users: user 'x' is named twice", "once"),
        ("[[project]]\nname='a'\nusers=['x=2']\n", "users: invalid user name 'x=2'", "names"),
        (
            "[[project]]\nname='a'\ncoordinators=['x']\n",
            "coordinators: 'x' is a user of no project",
            "add the user",
        ),
        ("[shares]\ndefault_project='a'\n", "default_project: unknown project 'a'", "[[project]]"),
        ("[[qos]]\nname='a'\nallow_projects=['b']\n", "allow_projects: unknown project 'b'", ""),
        ("[priority]\nrecompute_s=0\n", "[priority] recompute_s must be from 1 to 86400", ""),
        # rules
        ("queue = []\n", ":1: queue is empty", "omit queue"),
        (
            "[[queue]]\nname='a'\n[[queue]]\nname='a'\n",
            ":4: [[queue]] name: duplicate queue name 'a'",
            "",
        ),
        ("[[queue]]\nname='a b'\n", ":2: [[queue]] name: invalid queue name 'a b'", "one word"),
        ("[[queue]]\nname='a@b'\n", "[[queue]] name: invalid queue name 'a@b'", "one word"),
        ("[[queue]]\nname=''\n", "[[queue]] name: invalid queue name ''", "one word"),
        (
            "[[queue]]\nname='a'\npolicy='ballance'\n",
            ":3: [[queue]] policy: unknown policy 'ballance'",
            "'balance'?",
        ),
        (
            "[[queue]]\nname='a'\npolicy='x'\n",
            ":3: [[queue]] policy: unknown policy 'x'",
            "valid: bal",
        ),
        (
            "[[queue]]\nname='a'\n[[queue]]\nname='b'\npolicy='fifo'\n",
            ":5: [[queue]] policy 'fifo' of queue 'b' differs from 'balance' of queue 'a'",
            "the same policy in every [[queue]]",
        ),
        (
            "[[queue]]\nname='a'\nmax_walltime_s=10\nmax_interactive_walltime_s=20\n",
            ":4: [[queue]] max_interactive_walltime_s = 20 exceeds max_walltime_s = 10",
            "lower max_interactive_walltime_s",
        ),
        (
            "[[queue]]\nname='a'\nmax_detach_timeout_s=10\ndetach_timeout_s=20\n",
            ":4: [[queue]] detach_timeout_s = 20 exceeds max_detach_timeout_s = 10",
            "lower detach_timeout_s",
        ),
        (
            "[[queue]]\nname='a'\nmax_walltime_s=10\ndefault_walltime_s=20\n",
            ":4: [[queue]] default_walltime_s = 20 exceeds max_walltime_s = 10",
            "lower default_walltime_s",
        ),
        ("[head]\nserver_name = 'a b'\n", "[head] server_name: invalid name 'a b'", "every job id"),
        ("[head]\nserver_name = 'a@b'\n", "[head] server_name: invalid name 'a@b'", "every job id"),
        ("[head]\nsocket = ''\n", "[head] socket has 0 bytes", "1 to 107"),
        (f"[head]\nsocket = '/{'x' * 107}'\n", "[head] socket has 108 bytes", "1 to 107"),
        ("[head]\nstate_dir = ''\n", "[head] state_dir is empty", "a directory"),
        (
            "[tls]\nca = '/a'\nkey = '/k'\n",
            "[tls] certificate is missing",
            "ca, certificate and key",
        ),
        ("[head]\nkey_file = '/k'\n", "[head] key_file was removed", "gsched join"),
        ("[head]\nplaintext_node_channel = true\n", "plaintext_node_channel was removed", "TLS"),
        ("[node]\nkey_file = '/k'\n", "[node] key_file was removed", "gsched join"),
        (
            "[head]\nunknown_resource = 'x'\n",
            "unknown_resource: invalid value 'x'",
            "valid: refuse, warn",
        ),
        ("[head]\nlease_s = 10\n", ":2: [head] lease_s is 10, too short", "set 30 or more seconds"),
        (
            "[head]\nmaster_port_first=3000\nmaster_port_last=2000\n",
            ":2: [head] master_port_first = 3000 exceeds master_port_last = 2000",
            "both 1024 to 65535",
        ),
        ("[node]\nname = 'a b'\n", ":2: [node] name: invalid node name 'a b'", "1 to 64 letters"),
        ("[node]\nname = '-n1'\n", "[node] name: invalid node name '-n1'", "begins with a letter"),
        (
            "[head]\noperator_hosts = ['n 1']\n",
            "[head] operator_hosts: no host can have the name 'n 1'",
            "as gnodes shows it",
        ),
        ("[https]\nlisten = '6820'\n", "[https] listen: invalid address '6820'", "0.0.0.0:6820"),
        ("[https]\nkey = '/k'\n", "[https] certificate is missing", "certificate and key"),
        (
            "[https]\nlisten = 'x:1'\n[tls]\nca = '/a'\ncertificate = '/c'\nkey = '/k'\n",
            "[https] certificate is missing: this site has certificates of its own",
            "names of this host",
        ),
        ("[node]\nhead = 'x'\n", "[node] head: invalid address 'x'", "HOST:PORT"),
        ("[node]\nhead = 'x:0'\n", "[node] head: invalid address 'x:0'", "HOST:PORT"),
        ("[node]\nhead = 'x:99999'\n", "[node] head: invalid address 'x:99999'", "HOST:PORT"),
        ("[node]\nmemory = 'lots'\n", "[node] memory: invalid size 'lots'", "4gb"),
        ("[[node.gpu]]\ncount=1\nmemory='x'\n", ":3: [[node.gpu]] memory: invalid size 'x'", "4gb"),
        ("[node]\ncgroup = 'here'\n", "[node] cgroup: invalid value 'here'", "full path"),
        ("[node]\nfeatures = ['a b']\n", "[node] features: invalid feature 'a b'", "start with"),
        ("[node]\nresources = { mem = 1 }\n", "[node] resources: invalid name 'mem'", "gsub(1)"),
        (
            "[training]\nprofile = 'requestd'\n",
            "[training] profile: invalid value 'requestd'",
            "mean 'requested'?",
        ),
        (
            "[training]\npolicy = 'balance'\n",
            "'balance' does not plan training jobs",
            "valid: dead",
        ),
        ("[training]\npolicy = 'drss'\n", ":2: [training] policy: 'drss' does", "mean 'drs'?"),
        ("[[queue]]\nname='a'\npolicy='drs'\n", "unknown policy 'drs'", "in [training]"),
        ("[training]\nmoves_max = 1\n", "has no key 'moves_max'", "is a key of [training.drs]"),
        ("[training]\npolcy = 'x'\n", ":2: [training] has no key 'polcy'", "mean 'policy'?"),
        ("[training.drs]\nmoves_mx = 1\n", ":2: [training.drs] has no", "mean 'moves_max'?"),
        ("[training.dsr]\n", ":1: [training] has no key 'dsr'", "mean 'drs'?"),
        (
            "[[queue]]\nname='a'\npolicy='torque'\n",
            ":3: [[queue]] policy: 'torque' is a baseline for comparison, and not installed",
            "valid: balance, fifo",
        ),
        (
            "[training]\npolicy='themis'\n",
            ":2: [training] policy: 'themis' is a baseline for comparison, and not installed",
            "valid: deadline, drs, elasticflow, goodput, sia",
        ),
        (
            "[training.deadline]\nreserve = 0.1\n",
            ":2: [training.deadline] has no key 'reserve'",
            "did you mean 'reserve_share'? 'reserve' is a key of [balance]",
        ),
        (
            "[training.deadline]\nsteps_min = 100\n",
            ":2: [training.deadline] steps_min = 100 exceeds steps_max = 64",
            "steps_min <= steps_max",
        ),
        (
            "[training.sia]\np = 0.0\n",
            ":2: [training.sia] p = 0 makes all configurations cost the same",
            "choose a number below 0",
        ),
        (
            "[training.goodput]\np = 0.0\n",
            ":2: [training.goodput] p must be from above 0 to 1",
            "",
        ),
        ("[training.goodput]\nweight_bound = 0.5\n", ":2: [training.goodput] weight_bound", ""),
        ("[training.goodput]\nstart_gpus = 0\n", ":2: [training.goodput] start_gpus", ""),
        (
            "[training.goodput]\nshort = 1\n",
            ":2: [training.goodput] has no key 'short'",
            "mean 'short_first'?",
        ),
        ("[deadline]\nx = 1\n", ":1: unknown table or key 'deadline'", "[training.deadline]"),
        ("[[health_check]]\nx = 1\n", "table or key 'health_check'", "write [[node.health_check]]"),
        ("[[healthchecks]]\nx = 1\n", "key 'healthchecks'", "write [[node.health_check]]"),
        ("[[node.health_checks]]\n", ":1: [node] has no key", "did you mean 'health_check'?"),
        ("[[queues]]\nname = 'a'\n", ":1: unknown table or key 'queues'", "mean 'queue'?"),
        ("[[partition]]\nname = 'a'\n", ":1: unknown table or key", "use [[queue]]"),
        ("[metrics]\nlisten = ''\n", ":1: unknown table or key 'metrics'", "use [web]"),
        ("[[web]]\nlisten = ''\n", ":1: web must be one table", "write [web] once"),
        ("[user.al]\nx = 1\n", ":1: unknown table or key 'user'", "key of [[queue]], [[project]]"),
        ("listen = 'a'\n", ":1: unknown table or key 'listen'", "is a key of [web], [https]"),
        ("[training]\npolicy = 'drs-still'\n", "is a baseline for comparison", "valid: deadline"),
        (
            "[balance.weights]\ncpu = 0\nmemory = 0\n",
            ":1: [balance] weights must have cpu or",
            "no other weight",
        ),
        # times and sizes with units
        ("[head]\nlease_s = 'soon'\n", ":2: [head] lease_s: invalid time 'soon'", '"90m"'),
        ("[head]\nlease_s = '-1h'\n", ":2: [head] lease_s: invalid time '-1h'", '"90m"'),
        ("[head]\nnode_timeout_s = '0'\n", "must be from 0.1 to 1000000 seconds, got '0'", ""),
        (
            "[[queue]]\nname='a'\n[[queue]]\nname='b'\nmax_walltime_s='1x'\n",
            ":5: [[queue]] max_walltime_s: invalid time '1x'",
            '"4:00:00"',
        ),
        (
            "[moves]\nprepare_timeout_s = '1d'\n",
            ":2: [moves] prepare_timeout_s must be from 1 to 300 seconds, got '1d'",
            "",
        ),
        ("[training]\nmove_s = 'x'\n", ":2: [training] move_s: invalid time 'x'", ""),
        ("[history]\nkeep_days = '40000d'\n", "from 0 to 36500 days, got '40000d'", ""),
        ("[limits]\nsnapshot_bytes = 'big'\n", "snapshot_bytes: invalid size 'big'", "512mb"),
        ("[limits]\nsnapshot_bytes = '9tb'\n", "8589934592 bytes, got '9tb'", ""),
        ("[node]\nleast_spool = -1\n", ":2: [node] least_spool: invalid size '-1'", "512mb"),
        ("[node]\nleast_spool = true\n", "must be a string in quotation marks, got true", ""),
        ("[fabric]\ninside = 'fast'\n", ":2: [fabric] inside: invalid bandwidth 'fast'", ""),
    ],
)
def test_a_mistake_is_named_with_file_line_table_and_key(
    text: str, message: str, hint: str
) -> None:
    """And what to do about it."""
    with pytest.raises(ConfigError) as refused:
        parse_config(text, where="/etc/x.toml")

    assert refused.value.message.startswith("/etc/x.toml:")
    assert message in refused.value.message
    assert hint in refused.value.hint
    assert "`" not in refused.value.message


def test_times_and_sizes_take_units() -> None:
    """In every table, as the commands take them; plain numbers mean what the key says."""
    config = parse_config(
        """
[head]
detach_timeout_s = "0"
lease_s = "1h30m"
[[queue]]
name = "a"
max_walltime_s = "1d"
default_walltime_s = "4:00:00"
walltime_extension = 7200
[[queue]]
name = "b"
max_walltime_s = 90
[history]
keep_days = "36h"
keep_jobs_days = "30"
[training.goodput]
round_s = "5m"
[gpu_share]
drain_max_s = "250ms"
context_memory = 1048576
[limits]
snapshot_bytes = "1gb"
[node]
memory = 2147483648
[[node.gpu]]
count = 1
memory = 1024
""",
        where="x",
    )

    assert (config.head.detach_timeout_s, config.head.lease_s) == (0, 5400)
    first, second = config.queue
    assert (first.max_walltime_s, first.default_walltime_s) == (86400, 14400)
    assert (first.walltime_extension, second.max_walltime_s) == ("7200", 90)
    assert (config.history.keep_days, config.history.keep_jobs_days) == (1.5, 30)
    assert config.training.goodput.round_s == 300
    assert (config.gpu_share.drain_max_s, config.gpu_share.context_memory) == (0.25, "1048576")
    assert config.limits.snapshot_bytes == 1024**3
    assert (config.node.memory, config.node.gpu[0].memory) == ("2147483648", "1024")
    assert parse_config("[training]\nmove_s = '1m'\n", where="x").training.move_s == 60


def test_every_key_for_a_time_or_a_size_takes_a_unit() -> None:
    """A new key of another name would be one that does not."""
    for header, key, _ in numbers():
        if key.endswith(("_s", "_days", "_bytes")):
            with pytest.raises(ConfigError, match=f"{key}: invalid (time|size) 'x'"):
                parse_config(f"{header}{key} = 'x'\n", where="x")


def numbers() -> "Iterator[tuple[str, str, msgspec.inspect.IntType | msgspec.inspect.FloatType]]":
    """Yield table header, key and type of each key that is a number."""

    def of_table(
        header: str, struct: type[msgspec.Struct], name: str
    ) -> "Iterator[tuple[str, str, msgspec.inspect.IntType | msgspec.inspect.FloatType]]":
        info = msgspec.inspect.type_info(struct)
        assert isinstance(info, msgspec.inspect.StructType)
        for field in info.fields:
            kind = field.type
            if isinstance(kind, (msgspec.inspect.IntType, msgspec.inspect.FloatType)):
                yield header, field.name, kind
            elif isinstance(kind, msgspec.inspect.StructType):
                inner = f"{name}.{field.name}".lstrip(".")
                yield from of_table(f"[{inner}]\n", kind.cls, inner)
            elif isinstance(kind, msgspec.inspect.VarTupleType) and isinstance(
                kind.item_type, msgspec.inspect.StructType
            ):
                inner = f"{name}.{field.name}".lstrip(".")
                needed = "name = 'a'\n" if inner == "queue" else ""
                yield from of_table(f"[[{inner}]]\n{needed}", kind.item_type.cls, inner)

    yield from of_table("", Config, "")


@pytest.mark.parametrize(("header", "key", "kind"), list(numbers()))
def test_every_number_has_a_range_that_is_kept(
    header: str, key: str, kind: "msgspec.inspect.IntType | msgspec.inspect.FloatType"
) -> None:
    """A port that there is not, or a period of 0 s, is refused before a daemon meets it."""
    low = kind.ge if kind.ge is not None else kind.gt
    high = kind.le if kind.le is not None else kind.lt
    assert low is not None
    assert high is not None

    wrong: list[int | str] = [int(low) - 1, int(high) + 1]
    if isinstance(kind, msgspec.inspect.FloatType):
        wrong += ["nan", "inf", "-inf"]
    for value in wrong:
        with pytest.raises(ConfigError) as refused:
            parse_config(f"{header}{key} = {value}\n", where="x")
        assert f"] {key} must be " in refused.value.message
        assert f"got {value}" in refused.value.message


def test_a_line_is_found_in_the_right_entry_of_a_list() -> None:
    """Also where a comment, another table or another entry has the same words."""
    text = (
        "# policy = 'x'\n[training]\npolicy = 'drs'\n[[queue]]\nname = 'a'\npolicy = 'fifo'\n"
        "[[queue]] # the second\nname = 'b'\n  policy='x'\n"
    )
    with pytest.raises(ConfigError, match=r"^f:9: \[\[queue\]\] policy: unknown policy 'x'"):
        parse_config(text, where="f")


def test_the_environment_is_read_here_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """One variable with a default, or a copy of all."""
    monkeypatch.setenv("GSCHED_X", "1")

    assert (environment("GSCHED_X"), environment("GSCHED_NO", "d")) == ("1", "d")
    copy = full_environment()
    copy["GSCHED_X"] = "2"
    assert environment("GSCHED_X") == "1"


def test_t60_nothing_listens_beyond_this_machine_unless_the_configuration_says_so() -> None:
    config = Config()

    assert config.https.listen == ""
    assert config.head.node_host == "127.0.0.1"
    assert config.web.listen.startswith("127.0.0.1:")


@pytest.mark.parametrize(
    "address",
    [
        *("0.0.0.0:15080", "[::]:15080", "10.0.0.5:15080", "[::ffff:10.0.0.5]:15080"),
        "head.example.org:15080",
    ],
)
def test_t60_the_page_is_not_served_to_other_machines_in_clear_text(address: str) -> None:
    with pytest.raises(ConfigError, match=r"^f:2: \[web\] listen: ") as refused:
        parse_config(f'[web]\nlisten = "{address}"\n', where="f")

    assert "is reached from other machines, and the page is not encrypted" in str(refused.value)
    assert "reverse proxy with TLS" in refused.value.hint


@pytest.mark.parametrize(
    "address", ["127.0.0.1:15080", "127.0.0.2:0", "[::1]:15080", "localhost:15080", ""]
)
def test_the_page_is_served_on_any_address_of_this_machine_alone(address: str) -> None:
    assert parse_config(f'[web]\nlisten = "{address}"\n', where="f").web.listen == address


@pytest.mark.parametrize("place", ["0.0.0.0:15081", "10.0.0.5:15081", "node.example.org:15081"])
def test_metrics_of_a_node_leave_it_by_no_clear_text(place: str) -> None:
    """T60."""
    with pytest.raises(ConfigError, match=r"metrics_listen: invalid place") as refused:
        parse_config(f'[node]\nmetrics_listen = "{place}"\n', where="f")
    assert "a loopback address" in refused.value.hint
