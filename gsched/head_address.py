"""Where a head is: a Unix socket, HTTPS, a host behind ssh, or several of them."""

import os
from typing import TYPE_CHECKING

from gsched.config.environment import DEFAULT_SOCKET, environment
from gsched.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from gsched.ssh import SshHost


class HeadAddress:
    """Where a head listens.

    Attributes:
        text: as the user wrote it, for messages.
        source: where it was found: ``--head``, ``$GSCHED_HEAD``, a file, or ``default``.
        path: of the Unix socket; empty for TCP.
        host, port: for TCP.
        ssh: the host that is reached through ssh; None: it is reached directly.
        tls: TCP with TLS, and a token of the user.
        heads: each address by itself where there are several heads, of which one rules.
    """

    __slots__ = ("heads", "host", "path", "port", "source", "ssh", "text", "tls")

    def __init__(  # noqa: PLR0913 # one of five ways
        self,
        text: str,
        *,
        source: str,
        path: str = "",
        host: str = "",
        port: int = 0,
        ssh: "SshHost | None" = None,
        tls: bool = False,
        heads: "tuple[HeadAddress, ...]" = (),
    ):
        self.text = text
        self.source = source
        self.path = path
        self.host = host
        self.port = port
        self.ssh = ssh
        self.heads = heads
        self.tls = tls

    def check_sessions(self) -> None:
        """Check that the head serves terminals there.

        Raises:
            UsageError: it, or one of several heads, is reached by HTTPS.
        """
        if self.tls or any(head.tls for head in self.heads):
            raise UsageError(
                f"there are no terminals by {self.text}",
                hint="use ssh://HOST, or run the command on a host of the cluster",
            )


def find_head(explicit: str = "") -> HeadAddress:
    """Return where the head is: ``explicit``, $GSCHED_HEAD, a configuration, or the default.

    The user's own configuration, ~/.config/gsched/gsched.toml, comes before that of the machine.

    Raises:
        ConfigError: the configuration cannot be read, or the address is none.
    """
    if explicit:
        return parse_address(explicit, source="--head")
    from_environment = environment("GSCHED_HEAD")
    if from_environment:
        return parse_address(from_environment, source="$GSCHED_HEAD")
    from gsched.config.load import load_config  # late: all tables, which few commands need

    own = os.path.expanduser("~/.config/gsched/gsched.toml")
    is_own = not environment("GSCHED_CONFIG") and os.path.exists(own)
    configured = load_config(own if is_own else None).head.socket
    source = "default" if configured == DEFAULT_SOCKET else "the configuration"
    return parse_address(configured, source=source)


def parse_address(text: str, *, source: str) -> HeadAddress:
    """Return the address that ``text`` states: a path, or a URL of https, http or ssh.

    Several, with commas between, are those of all heads of a cluster.

    Raises:
        ConfigError: it is neither; ``source`` says who wrote it.
    """
    if "," in text:
        parts = [part.strip() for part in text.split(",")]
        heads = tuple(parse_address(part, source=source) for part in parts if part)
        if len(heads) > 1:
            return HeadAddress(text, source=source, heads=heads)
        text = next(filter(None, parts), text)
    bare = text.removeprefix("unix://").removeprefix("unix:")
    for scheme in ("http", "https"):
        if bare.startswith(f"{scheme}://"):
            return _tcp_address(text, scheme, bare.partition("://")[2].rstrip("/"), source)
    if bare.startswith("ssh://"):
        from gsched.ssh import SshHost  # late: few commands need it

        return HeadAddress(text, source=source, ssh=SshHost(bare, source=source))
    if "://" in bare:
        raise ConfigError(
            f"{source}: invalid head address {text!r}",
            hint="give the path of the head's socket, ssh://host or https://host:port",
        )
    return HeadAddress(text, source=source, path=os.path.abspath(bare))


def _tcp_address(text: str, scheme: str, authority: str, source: str) -> HeadAddress:
    host, colon, port = authority.rpartition(":")
    if not colon or authority.endswith("]"):
        host, port = authority, "80" if scheme == "http" else "443"
    host = host.removeprefix("[").removesuffix("]")
    if not _is_host(host) or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(
            f"{source}: invalid head address {text!r}", hint=f"write {scheme}://host:port"
        )
    return HeadAddress(text, source=source, host=host, port=int(port), tls=scheme == "https")


def _is_host(text: str) -> bool:
    return bool(text) and text.isascii() and all(c.isalnum() or c in ".-_:" for c in text)
