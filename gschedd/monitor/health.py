"""Whether the monitor lives, and whether head and monitor work."""

from typing import Final

from aiohttp import web

from gschedd.monitor.model import ReadModel

#: UseSamples that may be missing in a row before the head counts as stopped.
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
        """``GET /readyz``: the head answers, too."""
        model = self._model
        if model.trouble:
            return web.Response(text=f"{model.trouble}\n", status=503)
        if model.samples is None:
            return web.Response(text="no samples of nodes and jobs yet\n", status=503)
        age_s = model.clock.wall_s() - model.samples.now_s
        if age_s > model.config.sample_period_s * (1 + SAMPLES_MISSED):
            text = f"the newest samples are {age_s:.0f} s old\n"
            return web.Response(text=text, status=503)
        return web.Response(text="ok\n")
