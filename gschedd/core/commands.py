"""Wishes: imperative, each may be refused. Who wishes is known from the kernel."""

from msgspec import Struct

from gsched.protocol.actions import AnyJobAction, AnyNodeAction
from gsched.protocol.api import SubmitJob
from gschedd.core.settings import Caller


class Command(Struct, frozen=True, kw_only=True):
    """What somebody wants."""

    caller: Caller


class Submit(Command, frozen=True, kw_only=True):
    """Queue a job; ``digests`` are of its script and environment as the store keeps them."""

    asked: SubmitJob
    digests: tuple[str, str]


class ActOnJob(Command, frozen=True, kw_only=True):
    """Do to one job what was asked, of this and perhaps of others."""

    job: int
    asked: AnyJobAction


class ActOnNode(Command, frozen=True, kw_only=True):
    """Do to one node what was asked; for operators."""

    node: str
    asked: AnyNodeAction


AnyCommand = Submit | ActOnJob | ActOnNode
