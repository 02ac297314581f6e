"""The role ``login``: commands of users on a host that runs no jobs."""

import asyncio
import logging

from gnode.core.inputs import Disconnected, HeadOffered, Input, Welcomed
from gnode.daemon.accounts import Accounts
from gnode.daemon.channel import Channel, SettingsMessage
from gnode.daemon.commands import CommandSocket
from gnode.daemon.dialling import HeadDialler
from gnode.daemon.launching import LaunchRules
from gnode.daemon.parts import HostIdentity
from gnode.daemon.registration import registration
from gsched import watchdog
from gsched.clock import Clock

log = logging.getLogger(__name__)


async def _no_settings(message: SettingsMessage) -> None:
    """Take no settings: no key of a login host is the cluster's."""
    log.warning("a login host takes no settings: %r", message)


class LoginHost:
    """A gnode in this role."""

    def __init__(self, own: HostIdentity, rules: LaunchRules, clock: Clock) -> None:
        self._own = own
        self._finished = asyncio.Event()
        self._is_welcome = False
        self._channel = Channel(
            heads=own.heads,
            trusted=own.trusted,
            node=own.node,
            certificates=own.certificates,
            post=self._post,
            on_job=lambda message: log.warning("a login host runs no jobs: %r", message),
            on_relay=lambda answer: self._commands.take(answer),  # noqa: PLW0108 # it is made below
            lookup=Accounts(clock),
            files=rules.owner_files(),
            on_delivery=lambda answer: log.warning("a login host runs no jobs: %r", answer),
            on_settings=_no_settings,
            path="/v1/login",
        )
        self._commands = CommandSocket(
            own,
            HeadDialler(own),
            send=self._channel.send,
            is_connected=lambda: self._is_welcome,
        )

    def finish(self) -> None:
        """End the daemon."""
        self._finished.set()

    stop_all = shut_down = finish  # there are no jobs

    async def run(self) -> None:
        """Serve until `finish`."""
        async with asyncio.TaskGroup() as group:
            running = [
                group.create_task(self._channel.run()),
                group.create_task(self._commands.run()),
                group.create_task(watchdog.feed()),
            ]
            await self._finished.wait()
            for task in running:
                task.cancel()

    def _post(self, event: Input) -> None:
        own = self._own
        if isinstance(event, HeadOffered):
            self._channel.register(lambda address: registration(own, address))
        elif isinstance(event, Welcomed):
            self._is_welcome = True
            self._commands.welcomed(is_here=self._channel.is_local)
        elif isinstance(event, Disconnected):
            self._is_welcome = False
            self._commands.close_all()
        else:
            log.warning("a login host runs no jobs: %s is not obeyed", type(event).__name__)
