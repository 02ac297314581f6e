"""What one rank's state has otherwise than rank 0's, leaf by leaf.

Most of what ranks keep beside weights is the same on all of them: a scheduler, averaged weights.
Rank 0 writes all of it, and each other rank only what it has otherwise: the running averages of its
own batches, say. Dictionaries and lists are looked into; everything else is a leaf.
"""

from __future__ import annotations

import ctypes
import hashlib
import io
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Path = tuple[object, ...]
Entries = dict[str, object]  # by name, each a tree of dictionaries and lists
Digests = dict[str, dict[Path, bytes]]
Differences = dict[str, dict[Path, object]]

_DIGEST_BYTES = 16


def digests_of(entries: Entries) -> Digests:
    """Return a digest of each leaf of each entry."""
    return {
        name: {path: _digest(leaf) for path, leaf in _leaves(entry, ())}
        for name, entry in entries.items()
    }


def differences(entries: Entries, digests: Digests, rank_0s: Digests) -> Differences:
    """Return the leaves of this rank's ``entries`` that rank 0 has otherwise.

    Args:
        entries: of this rank.
        digests: of ``entries``, by `digests_of`.
        rank_0s: the same of rank 0.

    Returns:
        By entry and path; the path of a whole entry, where it has other leaves than rank 0's, is
        empty.
    """
    found: Differences = {}
    for name, entry in entries.items():
        mine, its = digests[name], rank_0s.get(name)
        if mine == its:
            continue
        if its is None or mine.keys() != its.keys():
            found[name] = {(): entry}
        else:
            found[name] = {
                path: leaf for path, leaf in _leaves(entry, ()) if mine[path] != its[path]
            }
    return found


def merged(entries: Entries, found: Differences) -> Entries:
    """Return rank 0's ``entries`` with what a rank has otherwise; they may be changed."""
    result = dict(entries)
    for name, leaves in found.items():
        result[name] = _merged(result.get(name), leaves, ())
    return result


def _merged(value: object, leaves: Mapping[Path, object], path: Path) -> object:
    if path in leaves:
        return leaves[path]
    if isinstance(value, dict):
        for key in value:
            value[key] = _merged(value[key], leaves, (*path, key))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            value[index] = _merged(part, leaves, (*path, index))
    return value


def _leaves(value: object, path: Path) -> Iterator[tuple[Path, object]]:
    if isinstance(value, dict) and value:
        for key, part in value.items():
            yield from _leaves(part, (*path, key))
    elif isinstance(value, list) and value:
        for index, part in enumerate(value):
            yield from _leaves(part, (*path, index))
    else:
        yield path, value


def _digest(leaf: object) -> bytes:
    import torch

    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    if type(leaf) in {torch.Tensor, torch.nn.Parameter} and leaf.layout == torch.strided:  # type: ignore[attr-defined]  # it is a tensor
        _add_tensor(digest, leaf)
    else:
        # Equal objects may be written in two ways: then more is saved than needed, and no less.
        written = io.BytesIO()
        torch.save(leaf, written)
        digest.update(written.getvalue())
    return digest.digest()


def _add_tensor(digest: hashlib.blake2b, tensor: Tensor) -> None:
    digest.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
    content = tensor.detach().cpu().contiguous()
    size_bytes = content.numel() * content.element_size()
    if size_bytes:  # not by NumPy, which need not be there
        digest.update((ctypes.c_char * size_bytes).from_address(content.data_ptr()))
