"""Which file systems a database must not lie on."""

from pathlib import Path

from gsched.file_systems import NETWORK_FILE_SYSTEMS, file_system, objection


def test_the_file_system_of_a_path_is_the_innermost_mount(tmp_path: Path) -> None:
    """/proc lies in /, but is its own."""
    assert file_system(Path("/proc/self")) == "proc"
    assert file_system(tmp_path) not in {"", "proc"}


def test_b11_a_network_file_system_is_named_through_a_link_too(tmp_path: Path) -> None:
    assert objection(tmp_path) == ""
    assert "nfs4" in NETWORK_FILE_SYSTEMS
    link = tmp_path / "state"
    link.symlink_to("/proc/tty")
    assert objection(link, {"proc"}) == (
        f"{link} lies on proc, where SQLite's locks and shared memory do not work"
    )
