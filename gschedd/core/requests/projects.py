"""For which project a job is, and which QOS it has; who may change them."""

from msgspec import structs

from gsched.config.shares import ROOT, ancestry
from gsched.errors import InvalidRequestError, NotPermittedError
from gsched.model.job import JobSpec
from gsched.model.limits import shown
from gschedd.core.requests.authorize import Verb, may
from gschedd.core.state.settings import Caller, Settings
from gschedd.core.state.state import party_of
from gschedd.plan.limits import Party


def with_project(spec: JobSpec, caller: Caller, settings: Settings) -> JobSpec:
    """Return a job for the project that it names or its user's default one, with a checked QOS.

    Raises:
        InvalidRequestError, NotPermittedError: it cannot be for this project, or have this QOS.
    """
    party = with_membership(party_of(spec), caller, settings)
    return structs.replace(spec, account=party.project, qos=party.qos)


def with_membership(party: Party, caller: Caller, settings: Settings) -> Party:
    """Return a job's party with its user's default project, if it names none, and a checked QOS.

    Raises:
        InvalidRequestError, NotPermittedError: as `with_project`.
    """
    party = party._replace(project=_project_of(party, settings))
    return party._replace(qos=_qos_of(party, caller, settings))


def _project_of(party: Party, settings: Settings) -> str:
    projects, user, wanted = settings.projects, party.user, party.project
    if not projects:
        return wanted
    mine = [each.name for each in projects.values() if user in each.user_shares]
    config = settings.config.shares
    default = config.default_project
    if not wanted and not mine and not default:
        if config.enforce:
            raise NotPermittedError(
                f"{user} is in no project, and this cluster runs jobs of projects only",
                hint="ask an operator, or the coordinator of a project, to add you",
            )
        return ""
    enabled = [name for name in mine if projects[name].enabled]
    project = wanted or next(iter([*enabled, *mine]), default)
    known = f"projects of {user}: {', '.join(dict.fromkeys(mine)) or 'none'}"
    if project not in projects:
        raise InvalidRequestError(f"unknown project {shown(project)}", hint=known)
    if project not in mine and project != default:
        raise NotPermittedError(f"{user} is not in project {project}", hint=known)
    if not projects[project].enabled:
        raise InvalidRequestError(f"project {project} does not accept jobs", hint=known)
    return project


def _qos_of(party: Party, caller: Caller, settings: Settings) -> str:
    if not settings.qos:
        return party.qos
    if party.qos in {"", "normal"} and party.qos not in settings.qos:  # Slurm's usual one
        return ""
    user, above = party.user, {each.name for each in ancestry(settings.projects, party.project)}
    usable = [
        each.name
        for each in settings.qos.values()
        if each.enabled
        and (
            not (each.allow_users or each.allow_projects)
            or user in each.allow_users
            or not above.isdisjoint(each.allow_projects)
            or may(caller, Verb.USE_ANY_QUEUE)
        )
    ]
    known = f"QOS that {user} may use: {', '.join(usable) or 'none'}"
    qos = settings.qos.get(party.qos)
    if qos is None:
        raise InvalidRequestError(f"unknown QOS {shown(party.qos)}", hint=known)
    if not qos.enabled:
        raise InvalidRequestError(f"QOS {qos.name} does not accept jobs", hint=known)
    if qos.name not in usable:
        who = [*qos.allow_users, *(f"project {name}" for name in qos.allow_projects)]
        raise NotPermittedError(
            f"{user} may not use QOS {qos.name}: it is for {', '.join(who)}", hint=known
        )
    return qos.name


def coordinates(user: str, project: str, settings: Settings) -> bool:
    """Return whether a user is a coordinator of a project, or of one above it."""
    way = ancestry(settings.projects, project) if project != ROOT else ()
    return any(user in each.coordinators for each in way)
