"""All routes of the page."""

from aiohttp import web

from gschedd.monitor.model import ReadModel
from gschedd.monitor.page.job import JobPages
from gschedd.monitor.page.live import LiveUpdates
from gschedd.monitor.page.nodes import NodePages
from gschedd.monitor.page.people import PeoplePages
from gschedd.monitor.page.queue import QueuePage
from gschedd.monitor.page.reservations import ReservationPage
from gschedd.monitor.page.shown import ShownJobs
from gschedd.monitor.page.site import Pages
from gschedd.monitor.page.submit import SubmitPage


def page_routes(model: ReadModel, site: Pages) -> list[web.RouteDef]:
    """Return the routes of all pages."""
    shown = ShownJobs(model)
    nodes = NodePages(site, model, shown)
    parts = (
        QueuePage(site, shown),
        nodes,
        ReservationPage(site, model, nodes),
        JobPages(site, model, shown),
        SubmitPage(site, model),
        PeoplePages(site, model, shown),
        LiveUpdates(site, model),
    )
    routes = (route for part in parts for route in part.routes())
    return [*site.own_routes(), *routes, site.last_route()]
