"""Which reconstruction shows which original: one matching per record, used for all metrics."""

from __future__ import annotations

import torch
from torch import Tensor


def match(
    reconstructions: Tensor,
    originals: Tensor,
    reconstructed_labels: Tensor | None = None,
    labels: Tensor | None = None,
) -> Tensor:
    """One-to-one matching of least total mean squared error (Hungarian method).

    Beware of the direction when calling ``linear_sum_assignment`` elsewhere: with reconstructions as
    rows, its columns say where each reconstruction *goes*, and indexing reconstructions by them applies
    the inverse of the permutation meant (they need an argsort first). Swaps are their own inverses, so
    the mistake shows from cycles of three on. Here the originals are the rows, and the columns are the order.

    Args:
        reconstructions: (N, ...); pixels that are not finite count as a worst match, not as an error.
        originals: (N, ...), same shape.
        reconstructed_labels: (N,), what the attacker takes the labels for.
        labels: (N,), the true ones. If both are given and agree as multisets, images are matched within
            equal labels only; otherwise labels are ignored.

    Returns:
        order: (N,) such that ``reconstructions[order[i]]`` is the partner of ``originals[i]``.
    """
    if reconstructions.shape != originals.shape or not originals.ndim:
        raise ValueError(
            "expected as many reconstructions as originals, of the same shape; "
            f"got {tuple(reconstructions.shape)} and {tuple(originals.shape)}"
        )
    guesses = reconstructions.detach().double().flatten(1).cpu()
    truths = originals.detach().double().flatten(1).cpu()
    groups = torch.zeros(2, len(truths), dtype=torch.int64)
    if reconstructed_labels is not None and labels is not None:
        both = reconstructed_labels.cpu().long(), labels.cpu().long()
        if torch.equal(both[0].sort().values, both[1].sort().values):
            groups = torch.stack(both)
    order = torch.empty(len(truths), dtype=torch.int64)
    for group in sorted(set(groups[1].tolist())):  # labels are blocks of the cost matrix, so each can be solved alone
        columns, rows = ((side == group).nonzero().flatten() for side in groups)
        if len(rows) == 1:
            order[rows] = columns
            continue
        from scipy.optimize import linear_sum_assignment  # a quarter of a process's start, and often not needed

        cost = torch.stack([(guesses[columns] - truths[row]).square().mean(dim=1) for row in rows])
        finite = cost[cost.isfinite()]
        worst = float(finite.max()) + 1 if len(finite) else 1.0
        cost = cost.nan_to_num(nan=worst, posinf=worst)
        order[rows] = columns[torch.from_numpy(linear_sum_assignment(cost.numpy())[1])]
    return order
