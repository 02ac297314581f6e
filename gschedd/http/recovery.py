"""What the node channel asks of safe mode."""

from typing import Protocol

from gsched.protocol import node as n


class Recovery(Protocol):
    """What is done where the database may be an old copy; see `gschedd.daemon.safemode`."""

    async def on_older_head(self, why: str) -> None:
        """Enter safe mode for what nodes know better."""

    def question(self, node: str, *, late: bool) -> n.SurveyAttempts | None:
        """Return what a node that registers is to be asked; None: it is let in at once."""

    async def take_known(self, node: str, known: n.KnownAttempts) -> bool:
        """Take in what a node knows; return whether it is to come again, to be let in."""
