"""Messages that users write into the output files of running jobs."""

from msgspec import Struct


class JobMessage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/jobs/ID/message``: append a line to the job's files; by default to its stderr.

    Attributes:
        node: whose files of the job; empty: those of its first node.
    """

    text: str
    stdout: bool = False
    stderr: bool = False
    node: str = ""


class MessageReply(Struct, frozen=True, kw_only=True):
    """The files to which the message was appended, and on which node."""

    node: str
    paths: tuple[str, ...]
