"""UseSamples of nodes and jobs for the monitor; it takes turns with everybody else."""

from aiohttp import web

from gsched.clock import Clock
from gsched.protocol.samples import JobUseSample, NodeUseSample, UseSamples
from gschedd.core.state.state import State
from gschedd.core.views.samples import job_sample, node_sample
from gschedd.http.answers import answer
from gschedd.http.callers import Callers
from gschedd.http.pace import Pace


class SampleQueries:
    """Gives samples."""

    def __init__(self, *, state: State, callers: Callers, clock: Clock) -> None:
        self._state = state
        self._callers = callers
        self._clock = clock

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [web.get("/v1/samples", self.give)]

    async def give(self, request: web.Request) -> web.StreamResponse:
        """``GET /v1/samples``: of all nodes and running jobs, for the monitor.

        Raises:
            NotPermittedError: it is not the head's own account that requests them.
        """
        self._callers.check_own(request)
        state, pace, now_s = self._state, Pace(), self._clock.wall_s()
        nodes: list[NodeUseSample] = []
        for node in list(state.nodes.values()):
            if node.name in state.nodes:  # it may be removed meanwhile
                nodes.append(node_sample(state, node))
            await pace.keep()
        jobs: list[JobUseSample] = []
        for job in list(state.running.values()):
            jobs.append(job_sample(state, job))
            await pace.keep()
        return answer(UseSamples(now_s=now_s, nodes=tuple(nodes), jobs=tuple(jobs)))
