"""The matching recovers permutations, also those that are not their own inverses."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from undelta.assignment import match


def distinct_images(count: int) -> torch.Tensor:
    return torch.rand(count, 1, 3, 3, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


@given(st.integers(1, 9).flatmap(lambda count: st.permutations(range(count))))
@example([1, 2, 0])
@example([2, 0, 1])
@example([1, 2, 0, 4, 5, 3])
def test_match_recovers_any_permutation(permutation: list[int]) -> None:
    originals = distinct_images(len(permutation))
    noise = 1e-3 * torch.rand(originals.shape, generator=torch.Generator().manual_seed(8))
    shuffled = (originals + noise)[permutation]
    order = match(shuffled, originals)
    assert torch.equal(shuffled[order], originals + noise)


@given(st.integers(1, 9).flatmap(lambda count: st.permutations(range(count))), st.integers(1, 4))
@example([1, 2, 0], 2)
def test_match_within_labels_recovers_any_permutation(permutation: list[int], classes: int) -> None:
    originals = distinct_images(len(permutation))
    labels = torch.arange(len(permutation)) % classes
    order = match(originals[permutation], originals, labels[permutation], labels)
    assert torch.equal(torch.tensor(permutation)[order], torch.arange(len(permutation)))


def test_labels_override_similarity() -> None:
    originals = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1)
    assert match(originals, originals).tolist() == [0, 1]
    assert match(originals, originals, torch.tensor([5, 3]), torch.tensor([3, 5])).tolist() == [1, 0]


def test_labels_that_disagree_are_ignored() -> None:
    originals = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1)
    assert match(originals, originals, torch.tensor([5, 5]), torch.tensor([3, 5])).tolist() == [0, 1]


def test_the_total_error_is_minimized_not_each_one() -> None:
    originals = torch.tensor([0.4, 0.6]).view(2, 1, 1, 1)
    reconstructions = torch.tensor([0.5, 0.3]).view(2, 1, 1, 1)
    assert match(reconstructions, originals).tolist() == [1, 0]


def test_diverged_reconstructions_take_what_is_left() -> None:
    originals = distinct_images(4)
    reconstructions = originals[[2, 3, 0, 1]].clone()
    reconstructions[0] = torch.nan
    reconstructions[1, 0, 0, 0] = torch.inf
    order = match(reconstructions, originals)
    assert order[:2].tolist() == [2, 3]
    assert sorted(order.tolist()) == [0, 1, 2, 3]
    assert sorted(match(originals * torch.nan, originals).tolist()) == [0, 1, 2, 3]


def test_different_numbers_of_images_are_refused() -> None:
    with pytest.raises(ValueError, match="as many reconstructions"):
        match(torch.zeros(2, 1, 1, 1), torch.zeros(3, 1, 1, 1))
