"""Where a throw-away cluster keeps its files below one directory D."""

import os
from dataclasses import dataclass
from pathlib import Path

from gsched.config.environment import environment
from gsched.config.words import node_socket_of
from gsched.errors import UsageError

SOCKET_PATH_BYTES_MAX = 107  # sockaddr_un.sun_path holds 108 with the final NUL


def default_directory() -> Path:
    """Return ``$XDG_STATE_HOME/gsched``, by default ``~/.local/state/gsched``."""
    base = environment("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "gsched"


@dataclass(frozen=True, kw_only=True)
class NodeLayout:
    """The files of one node.

    Attributes:
        name: of the node.
        directory: its ``state_dir``, ``D/nodes/NAME``.
    """

    name: str
    directory: Path

    @property
    def config(self) -> Path:
        """Return the configuration of this gnode."""
        return self.directory / "gnode.toml"

    @property
    def config_read(self) -> Path:
        """Return the file that holds the digest of the configuration gnode was started with."""
        return self.directory / "gnode.toml.read"

    @property
    def pid(self) -> Path:
        """Return the file in which gnode writes its process id."""
        return self.directory / "gnode.pid"

    @property
    def log(self) -> Path:
        """Return where gnode's standard error goes."""
        return self.directory / "gnode.log"


@dataclass(frozen=True, kw_only=True)
class ClusterLayout:
    """The files of a cluster that `gsched up` made, all below ``directory``."""

    directory: Path

    @property
    def config(self) -> Path:
        """Return the head's configuration."""
        return self.directory / "gsched.toml"

    @property
    def socket(self) -> Path:
        """Return the head's Unix socket."""
        return self.directory / "head.sock"

    @property
    def node_socket(self) -> Path:
        """Return the head's Unix socket for nodes."""
        return Path(node_socket_of(str(self.socket)))

    @property
    def pid(self) -> Path:
        """Return the file in which the head writes its process id."""
        return self.directory / "gschedd.pid"

    @property
    def port(self) -> Path:
        """Return the file in which the head writes the port for nodes."""
        return self.directory / "gschedd.port"

    @property
    def log(self) -> Path:
        """Return where the head's standard error goes."""
        return self.directory / "gschedd.log"

    @property
    def database(self) -> Path:
        """Return the head's database."""
        return self.directory / "gsched.db"

    @property
    def nodes_directory(self) -> Path:
        """Return the directory that holds one directory for each node."""
        return self.directory / "nodes"

    def node(self, name: str) -> NodeLayout:
        """Return the files of the node ``name``."""
        return NodeLayout(name=name, directory=self.nodes_directory / name)

    def nodes(self) -> tuple[NodeLayout, ...]:
        """Return the nodes that have a configuration, n2 before n10."""
        if not os.path.isdir(self.nodes_directory):
            return ()
        names = [path.parent.name for path in self.nodes_directory.glob("*/gnode.toml")]
        return tuple(self.node(name) for name in sorted(names, key=lambda n: (len(n), n)))

    @property
    def exists(self) -> bool:
        """Return whether a cluster was made here."""
        return os.path.isfile(self.config)  # pathlib raises where we may not look


def layout_of(directory: str | None) -> ClusterLayout:
    """Return the layout of ``directory`` (None: the default one), as an absolute path.

    Raises:
        UsageError: the path is too long for the Unix socket that will lie in it.
    """
    path = Path(directory).expanduser() if directory else default_directory()
    layout = ClusterLayout(directory=Path(os.path.abspath(path)))
    length = len(os.fsencode(layout.node_socket))
    if length > SOCKET_PATH_BYTES_MAX:
        raise UsageError(
            f"the path of the socket {layout.node_socket} has {length} bytes; the limit of the "
            f"system is {SOCKET_PATH_BYTES_MAX}",
            hint=f"choose a --dir that is at least {length - SOCKET_PATH_BYTES_MAX} bytes shorter",
        )
    return layout
