"""What a job that is submitted again keeps of its request, in words."""

from typing import Final

from msgspec import Struct, structs

from gsched.model.arrays import Array
from gsched.model.dependency import format_dependencies
from gsched.model.job import JobSpec
from gsched.model.signals import describe_signal
from gsched.model.states import HoldKind
from gsched.model.units import format_duration
from gsched.protocol.rerun import JobChanges
from gschedd.plan.moments import moment

#: Of a job: what can be changed, what is shown with that, and what its user did not state.
_NOT_LISTED: Final = frozenset(
    {*JobChanges.__struct_fields__, "request", "walltime_s", "launch", "script_digest"}
    | {"owner", "submit_dir", "place", "client_key", "extended_s", "rerun_of"}
)
_MOMENTS: Final = frozenset({"deadline_s", "start_after_s"})
_SIGNALS: Final = frozenset({"checkpoint_signal", "signal"})


def kept_words(spec: JobSpec) -> dict[str, str]:
    """Return what of a job is kept and is no default: names, and values in words."""
    found: dict[str, str] = {}
    if spec.request.places_max:
        most = spec.request.places_max * spec.request.chunks[0].gpus
        found["gpus"] = f"{spec.request.gpus} to {most}"
    for field in structs.fields(spec):
        value = getattr(spec, field.name)
        if field.name == "depends":
            value = format_dependencies(spec.depends)
        if field.name == "holds":
            value = tuple(hold for hold in spec.holds if hold is not HoldKind.DEPENDENCY)
        if field.name in _NOT_LISTED or (not field.required and value == field.default):
            continue
        if words := _words(field.name, value):
            found[field.name.removesuffix("_s").removesuffix("_digest")] = words
    return found


def _words(name: str, value: object) -> str:
    """Return the value of a field in words; empty: it says nothing."""
    match value:
        case bool():
            return "yes" if value else "no"
        case int() | float():
            return _number(name, value)
        case Array():
            return str(value)
        case Struct():
            stated = structs.asdict(value).items()
            words = ((key, _words(key, each)) for key, each in stated if each)
            return ", ".join(f"{key.removesuffix('_s')} {text}" for key, text in words if text)
        case tuple():
            return ", ".join(_words("", each) for each in value)
        case None:
            return ""
        case _:
            return "as before" if name.endswith("_digest") else str(value)


def _number(name: str, value: float) -> str:
    if name in _MOMENTS:
        return moment(value)
    if name in _SIGNALS:
        return describe_signal(int(value))
    if name == "umask":
        return f"{int(value):03o}"
    return format_duration(value) if name.endswith("_s") else f"{value:g}"
