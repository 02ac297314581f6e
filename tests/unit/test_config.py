"""The configuration file: every mistake has an answer that names it."""

from pathlib import Path

import pytest

from gsched.config import Config, environment, full_environment, load_config, parse_config
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
    monkeypatch.setattr("gsched.config.DEFAULT_CONFIG", str(tmp_path / "none.toml"))
    assert load_config(None) == Config()

    missing = str(tmp_path / "other.toml")
    with pytest.raises(ConfigError, match="no such file"):
        load_config(missing)
    monkeypatch.setenv("GSCHED_CONFIG", missing)
    with pytest.raises(ConfigError, match="no such file"):
        load_config(None)


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
        ("[head\n", "at line 1", "TOML"),
        ("[head]\nsokcet = '/x'\n", "sokcet", "did you mean 'socket'?"),
        ("[head]\nzzzzzz = 1\n", "zzzzzz", "see gsched.toml(5) for the keys"),
        ("[head]\nnode_port = 'x'\n", "head.node_port", "see gsched.toml(5)"),
        ("queue = []\n", "no [[queue]]", "leave [[queue]] out"),
        ("[[queue]]\nname='a'\n[[queue]]\nname='a'\n", "queue 'a' is there twice", ""),
        ("[head]\nunknown_resource = 'x'\n", "unknown_resource is 'x'", "refuse or warn"),
        ("[head]\nmaster_port_first = 80\n", "are no range", "1024 to 65535"),
        ("[node]\nname = 'a b'\n", "node.name 'a b' is not valid", "1 to 64 letters"),
        ("[node]\nname = '-n1'\n", "node.name '-n1' is not valid", "begins with a letter"),
        ("[[queue]]\nname='a'\npolicy='ballance'\n", "queue 'a' names", "did you mean 'balance'?"),
        ("[[queue]]\nname='a'\npolicy='x'\n", "unknown policy 'x'", "known are: balance, "),
        ("[deadline]\nprofile = 'askd'\n", "deadline.profile is 'askd'", "did you mean 'asked'?"),
        ("[deadline]\nvariant = 'our'\n", "deadline.variant is 'our'", "did you mean 'ours'?"),
        ("[deadline]\npolicy = 'drs-paper'\n", "a name for gsim", 'variant = "paper"'),
        ("[deadline]\npolicy = 'drs-still'\n", "a name for gsim", "moves_max = 0"),
        ("[deadline]\nmoves_max = -1\n", "deadline.moves_max", "see gsched.toml(5)"),
        ("[deadline]\npatience_s = nan\n", "deadline.patience_s", "see gsched.toml(5)"),
        ("[balance]\nrule = 'x'\n", "balance.rule is 'x'", "say gsched or paper"),
        ("[balance]\npredictor = 'x'\n", "balance.predictor is 'x'", "say robust or paper"),
        ("[balance.weights]\ngpu = -0.5\n", "weights.gpu is -0.5", "from 0 to"),
        ("[balance.weights]\ncpu = nan\n", "weights.cpu is nan", "from 0 to"),
        ("[balance.weights]\ncpu = inf\n", "weights.cpu is inf", "from 0 to"),
        ("[balance.weights]\ncpu = 0\nmemory = 0\n", "both 0", "one of them"),
        ("[balance.weights]\ngpumemory = 1\n", "gpumemory", "did you mean 'gpu_memory'?"),
        ("[balance]\nlatest = 0\n", "balance.latest is 0", "from 1 to 100000"),
        ("[balance]\nnewest_weight = 1.5\n", "newest_weight is 1.5", "from 0 to 1"),
        ("[balance]\nwindow_s = -1\n", "balance.window_s is -1", "from 0 to 86400"),
        ("[head]\nmaster_port_first=3000\nmaster_port_last=2000\n", "are no range", "both"),
    ],
)
def test_a_mistake_is_named_with_the_file(text: str, message: str, hint: str) -> None:
    """And what to do about it."""
    with pytest.raises(ConfigError) as refused:
        parse_config(text, where="/etc/x.toml")

    assert refused.value.message.startswith("/etc/x.toml: ")
    assert message in refused.value.message
    assert hint in refused.value.hint


def test_the_environment_is_read_here_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """One variable with a default, or a copy of all."""
    monkeypatch.setenv("GSCHED_X", "1")

    assert (environment("GSCHED_X"), environment("GSCHED_NO", "d")) == ("1", "d")
    copy = full_environment()
    copy["GSCHED_X"] = "2"
    assert environment("GSCHED_X") == "1"
