"""[fabric] and [training] of gsched.toml: what they come to, and what is refused."""

import pytest

from gsched.config.load import parse_config
from gsched.config.policies import TrainingConfig
from gsched.errors import ConfigError
from gschedd.core.state.settings import Settings
from gschedd.daemon.setup import settings_from
from gschedd.plan.training import Fabric


def settings_of(text: str) -> Settings:
    return settings_from(parse_config(text, where="x.toml"))


def test_without_a_word_it_is_the_default() -> None:
    said = settings_of("")

    assert said.fabric == Fabric()
    assert said.config.training == TrainingConfig()


def test_connections_and_speeds_reach_the_planner() -> None:
    """A pair may be named in any order; its layout then goes by it."""
    said = settings_of(
        """
        [fabric]
        inside = "300GB/s"
        between = "100Gbit/s"
        inside_of = { b = "32GB/s" }
        gpu_speeds = { "Tesla T4" = 0.25 }
        [[fabric.link]]
        nodes = ["c", "a"]
        bandwidth = "1GB/s"
        [training]
        refuse_impossible = false
        move_s = 5
        """
    )

    fabric = said.fabric
    assert fabric.layout({"a": 2}).bandwidth_bytes_s == 300e9
    assert fabric.layout({"b": 2}).bandwidth_bytes_s == 32e9
    assert fabric.layout({"a": 1, "b": 1}).bandwidth_bytes_s == 12.5e9
    assert fabric.layout({"a": 1, "c": 1}).bandwidth_bytes_s == 1e9
    assert fabric.layout({"a": 1}, {"a": "Tesla T4"}).device == 0.25
    training = said.config.training
    assert (training.refuse_impossible, training.move_s) == (False, 5.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[fabric]\ninside = "fast"', "[fabric] inside: invalid bandwidth 'fast'"),
        ('[fabric]\nbetween = "0GB/s"', "[fabric] between: bandwidth must be greater than zero"),
        ('[fabric]\ninside_of = { n1 = "7" }', "[fabric.inside_of] n1: invalid bandwidth '7'"),
        ('[[fabric.link]]\nnodes = ["a", "a"]\nbandwidth = "1GB/s"', "must be two different nodes"),
        ('[[fabric.link]]\nnodes = ["a"]\nbandwidth = "1GB/s"', "length 2"),
        (
            (
                '[[fabric.link]]\nnodes = ["a", "b"]\nbandwidth = "1GB/s"\n'
                '[[fabric.link]]\nnodes = ["b", "a"]\nbandwidth = "2GB/s"'
            ),
            "duplicate link between 'b' and 'a'",
        ),
        ("[fabric]\ngpu_speeds = { x = 0.0 }", "> 0"),
        ("[training]\nshare_for_others = 1.0", "below 1"),
        ("[training]\nmove_s = -1", "from 0 to"),
    ],
)
def test_what_cannot_be_is_refused_by_its_key(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        settings_of(text)

    assert words in refused.value.message
    assert refused.value.hint


def test_a_key_that_is_misspelt_is_told_what_was_meant() -> None:
    with pytest.raises(ConfigError) as refused:
        settings_of("[fabric]\nbetwen = '1GB/s'")

    assert refused.value.hint == "did you mean 'between'?"
