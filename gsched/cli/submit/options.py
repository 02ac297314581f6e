"""What the options of gsub state, on the command line and in directives alike."""

from msgspec import Struct, structs

from gsched.cli.submit.rows import gpu_range

# Terms of -l that say how many places there are: those of the command line replace, all together,
# those of the script, because mixed ones would contradict each other.
_PLACE_TERMS = frozenset({"nodes", "select", "ncpus", "procs"})  # place= is merged by its name
_GPU_TERMS = frozenset({"gpus", "ngpus"})  # a range of GPUs replaces these, too


class SubmitOptions(Struct, frozen=True, kw_only=True):
    """What one command line, or all directives of a script, say; None or empty: nothing."""

    start_after: str | None = None
    account: str | None = None
    project: str | None = None
    comment: str | None = None
    checkpoint: str | None = None
    stderr: str | None = None
    hold: bool = False
    join: str | None = None
    keep: str | None = None
    mail_points: str | None = None
    mail_to: str | None = None
    notify: str | None = None
    name: str | None = None
    stdout: str | None = None
    priority: int | None = None
    queue: str | None = None
    rerunnable: str | None = None
    shell: str | None = None
    users: str | None = None
    variables: tuple[str, ...] = ()
    export_all: bool = False
    extras: tuple[str, ...] = ()
    no_id: bool = False
    resources: tuple[str, ...] = ()
    script_arguments: str | None = None
    workdir: str | None = None
    torchrun: str | None = None
    nodes: int | None = None
    cpus: int | None = None
    gpus: str | None = None
    gpu_share: str | None = None
    share_class: str | None = None
    mem: str | None = None
    walltime: str | None = None
    every_node: bool = False
    exclusive: bool = False
    grace: str | None = None
    kind: str | None = None
    python: str | None = None
    deadline: str | None = None
    urgency: str | None = None
    elastic: bool = False
    training: str | None = None
    params: str | None = None
    samples: str | None = None
    batch: str | None = None
    epochs: str | None = None
    step_time: str | None = None
    reject_if_late: bool = False
    profile: bool = False
    adaptive: bool = False
    non_preemptible: bool = False
    inference: bool = False
    latency: str | None = None
    requests: str | None = None
    batch_max: str | None = None
    batch_per_gpu_max: str | None = None
    gpu_types: str | None = None
    scaling: str | None = None
    replica_gpus: str | None = None
    checkpoint_dir: str | None = None
    checkpoint_interval: str | None = None
    checkpoint_signal: str | None = None
    requeue_on: str | None = None
    lease: str | None = None
    signal: str | None = None
    open_mode: str | None = None
    detach_timeout: str | None = None
    snapshot: bool = False
    container: str | None = None
    container_mounts: tuple[str, ...] = ()
    container_workdir: str | None = None
    container_runtime: str | None = None
    dependency: str | None = None
    array: str | None = None
    each_line: str | None = None
    places_max: int = 0

    @property
    def gpus_most(self) -> int:
        """Return how many GPUs an elastic training takes at most, each a place; 0: none is."""
        return gpu_range(self.gpus or "0")[1] or self.places_max

    @property
    def speaks_of_training(self) -> bool:
        """Return whether anything is said of a training's size or deadline."""
        texts = (self.deadline, self.urgency, self.training, self.params, self.samples)
        batch = None if self.adaptive else self.batch
        return any(each is not None for each in (*texts, batch, self.epochs, self.step_time))

    @property
    def speaks_of_adaptation(self) -> bool:
        """Return whether anything is said of batch sizes that follow the GPUs."""
        sizes = (self.batch_max, self.batch_per_gpu_max, self.gpu_types, self.scaling)
        texts = (*sizes, self.replica_gpus, self.latency, self.requests)
        flags = self.adaptive or self.non_preemptible or self.inference
        return flags or any(each is not None for each in texts)

    @property
    def speaks_of_container(self) -> bool:
        """Return whether anything is said of a container."""
        texts = (self.container, self.container_workdir, self.container_runtime)
        return bool(self.container_mounts) or any(each is not None for each in texts)

    @property
    def speaks_of_saving(self) -> bool:
        """Return whether anything is said of checkpoints, of starting anew, or of a lease."""
        texts = (self.checkpoint_dir, self.checkpoint_interval, self.checkpoint_signal)
        return any(each is not None for each in (*texts, self.requeue_on, self.lease))

    @property
    def resource_texts(self) -> tuple[str, ...]:
        """Return the texts for ``-l``, those of the sugar options last.

        Raises:
            GschedError: a share of a GPU that cannot be.
        """
        texts = self.layout_texts
        if self.gpu_share is None and self.share_class is None:
            return texts
        from gsched.cli.submit.sharing import share_term  # late: few jobs share a GPU

        return texts + share_term(self.gpu_share, self.share_class, texts)

    @property
    def layout_texts(self) -> tuple[str, ...]:
        """Return these texts without the share of a GPU."""
        sugar: list[str] = []
        least, most = gpu_range(self.gpus or "0")
        if most:
            cpus = "" if self.cpus is None else f":ncpus={self.cpus}"
            sugar.append(f"select={least}{cpus}:ngpus=1")
        elif self.nodes is not None:
            cpus = "" if self.cpus is None else f":ppn={self.cpus}"
            gpus = "" if self.gpus is None else f":gpus={self.gpus}"
            sugar.append(f"nodes={self.nodes}{cpus}{gpus}")
        else:
            sugar.extend([] if self.cpus is None else [f"ncpus={self.cpus}"])
            sugar.extend([] if self.gpus is None else [f"gpus={self.gpus}"])
        sugar.extend([] if self.mem is None else [f"mem={self.mem}"])
        sugar.extend([] if self.walltime is None else [f"walltime={self.walltime}"])
        return self.resources + tuple(sugar)


def merged(command_line: SubmitOptions, script: SubmitOptions) -> SubmitOptions:
    """Return what holds when both speak: the command line beats the script, option by option.

    Lists (-l, -v, -W) are joined, the command line's part last, where it wins name by name.
    """
    mine, theirs = command_line.layout_texts, script.layout_texts
    places_max = command_line.gpus_most
    if _PLACE_TERMS & _term_names(mine) or (command_line.gpus is not None and script.gpus_most):
        dropped = _PLACE_TERMS | (_GPU_TERMS if command_line.gpus_most else frozenset())
        theirs = tuple(_without(text, dropped) for text in theirs)
    else:
        places_max = script.gpus_most
    fields: dict[str, object] = {}
    for field in structs.fields(SubmitOptions):
        stated = getattr(command_line, field.name)
        fields[field.name] = getattr(script, field.name) if stated == field.default else stated
    fields |= {
        "resources": tuple(filter(None, theirs)) + mine,
        "variables": script.variables + command_line.variables,
        "extras": script.extras + command_line.extras,
        "nodes": None,
        "cpus": None,
        "gpus": None,
        "mem": None,
        "walltime": None,
        "places_max": places_max,
    }
    if "gpu_share" in _term_names(mine):
        fields |= {"gpu_share": command_line.gpu_share, "share_class": command_line.share_class}
    if command_line.deadline is not None or command_line.urgency is not None:
        fields |= {"deadline": command_line.deadline, "urgency": command_line.urgency}
    return structs.replace(command_line, **fields)


def _term_names(texts: tuple[str, ...]) -> set[str]:
    return {part.partition("=")[0].strip() for text in texts for part in text.split(",")}


def _without(text: str, names: frozenset[str]) -> str:
    parts = [part for part in text.split(",") if part.partition("=")[0].strip() not in names]
    return ",".join(parts)
