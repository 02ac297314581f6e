"""Launch messages for tests, by short settings."""

from typing import Any

from gsched.model.job import JobSpec, Owner
from gsched.model.origin import Origin
from gsched.model.resources import Request, Share
from gsched.protocol.node import Launch


def launch_of(job: int, attempt: int, **settings: Any) -> Launch:
    """Return a launch of alice's job on n1.

    Args:
        job, attempt: numbers.
        settings: fields of `Launch`, else of its `JobSpec`, else of its `Origin`; ``share`` is that
            of the only node.
    """
    share = settings.pop("share", Share(node="n1", cpus=1))
    spec: dict[str, Any] = {
        "owner": Owner(user="alice", uid=1000, gid=1000),
        "name": "train",
        "queue": "batch",
        "request": Request(),
        "workdir": "/home/alice/runs",
    }
    origin: dict[str, Any] = {
        "token": "",
        "submitted_s": 5.0,
        "assigned_s": 6.0,
        "allocation": (share,),
        "active": (share.node,),
    }
    own: dict[str, Any] = {"server": "head", "script": "#!/bin/sh\necho hi\n"}
    places = ((Launch, own), (JobSpec, spec), (Origin, origin))
    for name, value in settings.items():
        next(place for kind, place in places if name in kind.__struct_fields__)[name] = value
    origin.setdefault("spec", JobSpec(**spec))
    own.setdefault("origin", Origin(**origin))
    return Launch(job=job, attempt=attempt, **own)
