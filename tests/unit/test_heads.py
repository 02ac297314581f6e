"""Where a host connects when its cluster has several heads."""

from pathlib import Path

from gnode.daemon.heads import Heads


def test_each_head_is_tried_before_a_pause(tmp_path: Path) -> None:
    heads = Heads("a:1, b:1,c:1", tmp_path / "heads")
    tried = [heads.current]
    while not heads.turn():
        tried.append(heads.current)
    assert tried == ["a:1", "b:1", "c:1"]
    assert heads.current == "a:1"


def test_a_head_that_was_left_is_tried_first_and_then_all_others(tmp_path: Path) -> None:
    heads = Heads("a:1,b:1", tmp_path / "heads")
    assert not heads.turn()
    heads.stay(())
    assert heads.current == "b:1"
    assert not heads.turn()
    assert heads.current == "a:1"
    assert heads.turn()


def test_addresses_from_the_head_are_kept_until_it_sends_fewer(tmp_path: Path) -> None:
    heads = Heads("a:1", tmp_path / "heads")
    heads.stay(["b:1", "a:1"])

    again = Heads("a:1", tmp_path / "heads")
    assert again.are_several
    again.stay(["a:1"])
    assert not Heads("a:1", tmp_path / "heads").are_several


def test_what_cannot_be_read_counts_as_nothing(tmp_path: Path) -> None:
    (tmp_path / "heads").write_bytes(b"\xff")
    assert Heads("a:1", tmp_path / "heads").current == "a:1"


def test_a_head_on_this_machine_is_the_only_one(tmp_path: Path) -> None:
    heads = Heads("unix:/run/head.sock", tmp_path / "heads")
    heads.stay(["b:1"])
    assert heads.socket == "/run/head.sock"
    assert not heads.are_several
