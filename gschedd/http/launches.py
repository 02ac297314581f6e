"""Makes the launch message of an attempt: the job's spec, its script and environment, its place."""

from collections import OrderedDict
from collections.abc import Callable

import msgspec

from gsched.model.ids import array_of, index_of
from gsched.model.origin import Origin
from gsched.model.states import AttemptState, PartState
from gsched.protocol import node as n
from gschedd.core.state import effects as e
from gschedd.core.state.records import Attempt, Job, Part
from gschedd.core.state.state import State
from gschedd.core.state.walltime import walltime_left_s
from gschedd.core.training.checkpoints import checkpoint_dir

MAX_CACHED_BLOBS = 2000
MAX_CACHED_BYTES = 64 * 1024 * 1024

LINE_VARIABLE = "GSCHED_ARRAY_LINE"

_environment_decoder = msgspec.json.Decoder(dict[str, str])


class BlobCache:
    """Scripts and environments by digest: the last used ones in memory, all in the store."""

    def __init__(self, read: Callable[[str], bytes]) -> None:
        self._read = read
        self._blobs: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0

    def put(self, digest: str, data: bytes) -> None:
        """Remember a blob that is about to become durable."""
        if digest in self._blobs:
            self._blobs.move_to_end(digest)
            return
        self._blobs[digest] = data
        self._bytes += len(data)
        while len(self._blobs) > MAX_CACHED_BLOBS or self._bytes > MAX_CACHED_BYTES:
            _, dropped = self._blobs.popitem(last=False)
            self._bytes -= len(dropped)

    def get(self, digest: str) -> bytes:
        """Return a blob, from the store if need be."""
        data = self._blobs.get(digest)
        if data is None:
            data = self._read(digest)
            self.put(digest, data)
        else:
            self._blobs.move_to_end(digest)
        return data


class Launches:
    """Composes launch messages from the state and the blobs.

    Args:
        state: of the head.
        blobs: scripts and environments.
        server: the head's name.
        cluster: its id, which no other cluster has: it is part of each rendezvous.
    """

    def __init__(self, *, state: State, blobs: BlobCache, server: str, cluster: str = "") -> None:
        self._state = state
        self._blobs = blobs
        self._server = server
        self._cluster = cluster
        self._lines: tuple[str, list[str]] | None = None

    def order(self, effect: e.SendLaunch | e.SendPrepare) -> n.Launch | n.Prepare | None:
        """Return the order to launch an attempt or to prepare it; None: that is moot by now."""
        return self.message(effect) if isinstance(effect, e.SendLaunch) else self._prepare(effect)

    def message(self, effect: e.SendLaunch) -> n.Launch | None:
        """Return the message, or None if the attempt is over or being stopped by now."""
        job = self._state.jobs.get(effect.job)
        attempt = job.attempt if job is not None else None
        if job is None or attempt is None or attempt.number != effect.attempt:
            return None
        return self._composed(job, attempt, effect.node)

    def _prepare(self, effect: e.SendPrepare) -> n.Prepare | None:
        """Return the order to prepare an attempt, or None if its move is off by now.

        What only its assignment says is left open: its rendezvous's port and its lease.
        """
        job = self._state.jobs.get(effect.job)
        move = job.move if job is not None else None
        if job is None or move is None or move.prepare != effect.attempt:
            return None
        attempt = Attempt(
            number=move.prepare,
            state=AttemptState.ASSIGNED,
            assigned_s=move.requested_s,
            parts={share.node: Part(share=share) for share in move.allocation},
            token=self._state.epoch_id,
        )
        launch = self._composed(job, attempt, effect.node)
        return n.Prepare(launch=launch, yields=effect.yields)

    def _line_of(self, job: Job) -> dict[str, str]:
        """Return the variable with the line of an element of an array, where it has one."""
        digest = job.spec.lines_digest
        if not digest or not array_of(job.id):
            return {}
        if self._lines is None or self._lines[0] != digest:  # elements start one after another
            self._lines = (digest, self._blobs.get(digest).decode().split("\n"))
        return {LINE_VARIABLE: self._lines[1][index_of(job.id)]}

    def _composed(self, job: Job, attempt: Attempt, node: str) -> n.Launch:
        spec = job.spec
        shares = attempt.allocation
        hosts = [share.node for share in shares]
        master = self._state.nodes.get(hosts[0])
        script = self._blobs.get(spec.script_digest) if spec.script_digest else b""
        environment = (
            _environment_decoder.decode(self._blobs.get(spec.environment_digest))
            if spec.environment_digest
            else {}
        )
        return n.Launch(
            job=job.id,
            attempt=attempt.number,
            server=self._server,
            cluster=self._cluster,
            origin=Origin(
                token=attempt.token,
                spec=spec,
                submitted_s=job.submitted_s,
                assigned_s=attempt.assigned_s,
                allocation=shares,
                active=tuple(
                    name
                    for name, part in attempt.parts.items()
                    if part.state is not PartState.PASSIVE
                ),
                master_port=attempt.master_port,
            ),
            rank=hosts.index(node),
            script=script.decode(),
            environment=environment | self._line_of(job),
            walltime_s=walltime_left_s(job),
            master_address=master.address if master is not None else "",
            checkpoint_dir=checkpoint_dir(job),
            lease_s=attempt.lease_s,
            lease_grace_s=attempt.lease_grace_s,
            batching=attempt.batching,
            profile_batches=attempt.profile_batches,
            short_number=job.short_number if array_of(job.id) else 0,
        )
