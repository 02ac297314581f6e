"""``--gpu-share`` and ``--share-class``: what they say, as a term of ``-l``."""

from collections.abc import Iterable

from msgspec import structs

from gsched.errors import BadResourceError, UsageError
from gsched.model.gpu_share_text import format_gpu_share, parse_gpu_share
from gsched.model.limits import shown
from gsched.model.states import ShareClass


def share_term(
    share: str | None, share_class: str | None, resources: Iterable[str]
) -> tuple[str, ...]:
    """Return the term for ``-l``; none where nothing is shared.

    Args:
        share: ``40%,16gb`` or ``40%``; None: the option is not given.
        share_class: ``high`` or ``low``; None: likewise.
        resources: what ``-l`` says.

    Raises:
        BadResourceError: the share cannot be read, or is no part of a GPU.
        UsageError: a class without a share.
    """
    if share is None and share_class is None:
        return ()
    if share is None:
        terms = [part.strip() for text in resources for part in text.split(",")]
        named = [term for term in terms if term.startswith("gpu_share=")]
        hint = "give the share: --gpu-share 40%"
        if named:  # the class that it has already gives way
            kept = [word for word in named[-1].split(":") if word.strip() not in set(ShareClass)]
            hint = f"write -l {':'.join((*kept, share_class or ''))}"
        raise UsageError(f"--share-class {share_class} without --gpu-share", hint=hint)
    try:
        share_request = parse_gpu_share(share.replace(",", ":"))
    except BadResourceError as error:
        read, stated = shown(share.replace(",", ":")), shown(share)
        message = error.message.replace(f"gpu_share={read}", f"--gpu-share {stated}", 1)
        message = message.replace("gpu_share=", "--gpu-share ", 1)
        hint = "write --gpu-share PERCENT%[,MEMORY], as in --gpu-share 40%,16gb"
        if error.hint and not error.hint.startswith("write gpu_share="):
            hint = error.hint
        raise BadResourceError(
            message.replace("gpu_share:", "--gpu-share:", 1), hint=hint
        ) from None
    if share_class is not None:
        share_request = structs.replace(share_request, share_class=ShareClass(share_class))
    return (f"gpu_share={format_gpu_share(share_request)}",)
