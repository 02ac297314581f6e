"""Removal of what containers leave in their owners' storage, as the owner."""

import asyncio
import logging
import os
import sys
from typing import Final

from gnode.core.effects import RemoveContainer
from gnode.daemon import run_as_owner

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 60.0
_ENVIRONMENT: Final = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LANG": "C.UTF-8"}


async def remove_container(order: RemoveContainer) -> None:
    """Run the command; what goes wrong is in the log, as nothing runs there any more."""
    if not order.switch_user and order.uid != os.geteuid():
        log.warning("attempt %s: its container is not removed as uid %d", order.key.name, order.uid)
        return
    argv = order.removal.argv
    if order.switch_user:
        owner = (order.user, str(order.uid), str(order.gid))
        argv = (sys.executable, "-I", run_as_owner.__file__, *owner, *argv)
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={**order.removal.env, **_ENVIRONMENT},
            cwd="/",
        )
    except OSError as error:
        log.warning("attempt %s: its container cannot be removed: %s", order.key.name, error)
        return
    try:
        async with asyncio.timeout(TIMEOUT_S):
            _, said = await process.communicate()
    except (TimeoutError, asyncio.CancelledError) as error:
        process.kill()
        if isinstance(error, asyncio.CancelledError):
            raise
        log.warning("attempt %s: the removal of its container takes too long", order.key.name)
        return
    if process.returncode:
        words = said.decode(errors="replace").strip()[-300:]
        log.warning("attempt %s: its container was not removed: %s", order.key.name, words)
