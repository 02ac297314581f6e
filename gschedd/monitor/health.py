"""Whether the monitor lives, and whether head and monitor work."""

from typing import Final

from aiohttp import web

from gschedd.monitor.model import ReadModel

#: Samples that may be missing in a row before the head counts as stopped.
SAMPLES_MISSED: Final = 2


class HealthRoutes:
    """``/livez`` and ``/readyz``: 200 where all is well, else 503 with the reason as text."""

    def __init__(self, model: ReadModel) -> None:
        self._model = model

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [web.get("/livez", self.live), web.get("/readyz", self.ready)]

    async def live(self, _: web.Request) -> web.StreamResponse:
        """``GET /livez``: the process answers."""
        return web.Response(text="ok\n")

    async def ready(self, _: web.Request) -> web.StreamResponse:
        """``GET /readyz``: the head decides and records, and the monitor has its samples."""
        text = await self._model.pulse.look() or self._own_trouble()
        return web.Response(text=f"{text or 'ok'}\n", status=503 if text else 200)

    def _own_trouble(self) -> str:
        model = self._model
        if model.sample_age_s is None:
            return model.trouble or "no samples of nodes and jobs yet"
        if model.sample_age_s > model.config.sample_period_s * (1 + SAMPLES_MISSED):
            return f"the newest samples are {model.sample_age_s:.0f} s old: {model.trouble}"
        return ""
