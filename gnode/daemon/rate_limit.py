"""A limit on bytes in a second, of all that passes one way together."""

import asyncio
from typing import Final

#: What may pass at once after a pause, seconds of the rate.
_BURST_S: Final = 0.1


class RateLimit:
    """Lets bytes pass at a rate at most.

    Args:
        rate: bytes in a second.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._next_s = 0.0

    async def passed(self, size_bytes: int) -> None:
        """Note that bytes have passed, and wait until more may."""
        now_s = asyncio.get_running_loop().time()
        self._next_s = max(self._next_s, now_s - _BURST_S) + size_bytes / self._rate
        if self._next_s > now_s:
            await asyncio.sleep(self._next_s - now_s)
