"""Products of matrices agree with torch's own, whichever library computes them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from undelta.engine import products

SHAPES = [(1, 1, 1), (2, 3, 4), (8, 512, 129), (512, 8, 300), (1, 40, 7), (7, 40, 1)]
available = pytest.mark.skipif(not products.works(), reason="this torch has no product by oneDNN")


def matrices(rows: int, inner: int, columns: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, inner, generator=generator), torch.randn(inner, columns, generator=generator)


def layouts(matrix: Tensor) -> Iterator[Tensor]:
    """The same matrix, differently laid out in memory; the last one is its first row, repeated."""
    yield matrix
    yield matrix.t().contiguous().t()
    yield torch.cat([matrix, matrix], 1)[:, : matrix.shape[1]]
    yield torch.cat([matrix, matrix], 1)[:, ::2]
    yield matrix[:1].expand_as(matrix)


@pytest.fixture(params=["torch's own", pytest.param("oneDNN", marks=available)])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "mkl_is_behind", lambda: request.param == "oneDNN")


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("shape", SHAPES)
def test_products_agree_with_those_in_double_precision(shape: tuple[int, int, int]) -> None:
    left, right = matrices(*shape)
    for one in layouts(left):
        for other in layouts(right):
            expected = one.double() @ other.double()
            torch.testing.assert_close(products.product(one, other).double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("library")
def test_a_linear_layer_adds_its_bias() -> None:
    inputs, weight = matrices(5, 6, 6)
    bias = torch.arange(6.0)
    torch.testing.assert_close(products.linear(inputs, weight, bias), inputs @ weight.t() + bias)


@pytest.mark.usefixtures("library")
def test_a_sum_of_products_changes_none_of_its_factors() -> None:
    pairs = [matrices(3, 4, 5), matrices(3, 2, 5)]
    copies = [(left.clone(), right.clone()) for left, right in pairs]
    total = products.sum_of_products(pairs)
    torch.testing.assert_close(total, sum(left @ right for left, right in copies))
    for pair, copy in zip(pairs, copies, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(pair, copy, strict=True))


@available
def test_what_onednn_is_not_for_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> Tensor:
        raise AssertionError("oneDNN was asked")

    monkeypatch.setattr(products, "mkl_is_behind", lambda: True)
    monkeypatch.setattr(products, "_onednn", refuse)
    left, right = matrices(2, 3, 4)
    tracked = left.clone().requires_grad_()
    for one, other in [
        (left.double(), right.double()),
        (tracked, right),
        (left[:0], right),
        (left[:, :0], right[:0]),
    ]:
        assert torch.equal(products.product(one, other), one @ other)
    with pytest.raises(AssertionError), torch.no_grad():
        products.product(tracked, right)  # nobody differentiates here


@pytest.mark.parametrize(
    ("vendor", "capability", "other"),
    [
        ("AuthenticAMD", "AVX512", True),
        ("AuthenticAMD", "AVX2", False),
        ("GenuineIntel", "AVX512", False),
        (None, "AVX512", False),
    ],
)
def test_onednn_is_for_processors_on_which_mkl_stops_at_avx2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vendor: str | None, capability: str, other: bool
) -> None:
    monkeypatch.setattr(products, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    if vendor:
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nvendor_id\t: {vendor}\n")
    assert products.mkl_is_behind.__wrapped__() is other


@pytest.mark.parametrize("failure", [AttributeError, RuntimeError, TypeError, None])
def test_a_torch_without_it_or_with_a_wrong_one_is_noticed(
    monkeypatch: pytest.MonkeyPatch, failure: type[Exception] | None
) -> None:
    def broken(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if failure:
            raise failure("not here")
        return inputs @ weight.t()  # without the bias

    monkeypatch.setattr(products, "_onednn", broken)
    assert not products.works.__wrapped__()
