"""The frozen cases: they come out as they were frozen, and anything else is noticed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from undelta.errors import DataError
from undelta.studies.bench.cases import Fingerprint, fingerprint, frozen, load_benchmark


def test_every_case_and_seed_is_frozen() -> None:
    cases = load_benchmark().cases.values()
    assert set(frozen()) == {f"{case.name}-{seed}" for case in cases for seed in case.seeds}


@pytest.mark.parametrize("name", ["short", "pruned", "aggregated"])
def test_a_case_comes_out_as_it_was_frozen(name: str) -> None:
    case = load_benchmark().cases[name]
    found = fingerprint(*case.observe(0))
    found.compare(frozen()[f"{name}-0"], name)  # raises if it is another one; bits may differ between machines


def test_another_draw_is_not_taken_for_the_frozen_one() -> None:
    case = load_benchmark().cases["short"]
    with pytest.raises(DataError, match="did not come out as it was frozen"):
        fingerprint(*case.observe(5)).compare(frozen()["short-0"], "case short-0")


def test_rounding_is_forgiven_but_not_called_exact() -> None:
    one = Fingerprint(digest="a", images=(0.5, 1.0), update=(2.0, -1.0))
    assert one.compare(one, "case")
    assert not replace(one, digest="b", update=(2.0001, -1.0)).compare(one, "case")
    with pytest.raises(DataError):
        replace(one, digest="b", update=(2.1, -1.0)).compare(one, "case")


def test_a_case_withholds_what_it_says() -> None:
    _, seen = load_benchmark().cases["unknown"].observe(0)
    assert seen.unknown == ("batches", "epochs", "learning_rate")
    assert seen.labels is None


def test_a_disguise_shows_the_same_things_elsewhere() -> None:
    case = load_benchmark().cases["short"]
    plain, _ = case.observe(0)
    hidden, _ = case.observe(0, disguised=True)
    assert not torch.equal(plain.images, hidden.images)
    torch.testing.assert_close(hidden.images.sort().values.mean(), plain.images.sort().values.mean())
    torch.testing.assert_close(hidden.images[:, 1].flip(2), plain.images[:, 0])
