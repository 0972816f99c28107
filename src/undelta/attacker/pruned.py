"""An attacker's answer to pruning: entries that were not sent say nothing, so do not match them.

A pruned entry arrives as an exact zero. So does one that training did not move, such as a dead unit's, and that one
does say something. The two are told apart by what was sent: pruning leaves nothing small but zeros.
"""

from __future__ import annotations

import torch
from torch import Tensor

from undelta.updates import Update

FACTOR = 2.0
SHARE = 0.02
"""The share of sent entries within this factor of the smallest; a larger one is a cut."""
COUNT = 20
"""And so many of them: where nothing was cut, each further one comes with probability one half, so this many do not."""


def sent_entries(target: Update) -> Update | None:
    """Ones where an entry was sent and zeros where it was pruned; None if nothing looks pruned.

    Looked for in all tensors together, then in each by itself.
    """
    if was_pruned(*target.values()):
        return {name: _ones(value) for name, value in target.items()}
    pruned = {name for name, value in target.items() if was_pruned(value)}
    if not pruned:
        return None
    return {name: _ones(value) if name in pruned else torch.ones_like(value) for name, value in target.items()}


def was_pruned(*values: Tensor) -> bool:
    """Whether these have zeros, and a good share of their other entries is about as small as the smallest of them.

    Where nothing was cut, sizes go down to nearly zero: hardly any entry lies within twice the smallest one. Where the
    small ones were cut, many lie just above the cut. So few entries that chance could do the same count as whole.
    """
    sent = sum(int(value.count_nonzero()) for value in values)
    if sent in (0, sum(value.numel() for value in values)):
        return False
    sizes = (value.abs() for value in values)  # one after the other: together they are as large as the model
    cut = FACTOR * min(float(size[size > 0].min()) for size in sizes if size.any())
    smallest = sum(int(((value != 0) & (value.abs() <= cut)).sum()) for value in values)
    return smallest > COUNT and smallest > SHARE * sent


def _ones(value: Tensor) -> Tensor:
    return (value != 0).to(value.dtype)
