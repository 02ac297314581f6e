"""What the monitor tells commands of its page."""

from msgspec import Struct


class WebAddress(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The page's address for one user.

    Attributes:
        address: host and port; empty: the page is on the Unix socket only.
        base_path: below which a reverse proxy shows it.
        origin: of that proxy, as ``https://cluster.example.org``; empty: there is none.
        token: begins one session of the user, within five minutes.
    """

    address: str
    base_path: str = ""
    origin: str = ""
    token: str = ""
