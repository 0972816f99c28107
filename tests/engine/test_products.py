"""Products of matrices agree with torch's own, whichever library computes them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from undelta.engine import Network, products
from undelta.training import LocalTraining
from undelta.updates import parameters_of

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
@pytest.mark.parametrize("bias", [torch.arange(6.0), torch.arange(12.0)[::2], torch.ones(1).expand(6)])
def test_a_linear_layer_adds_its_bias_however_that_is_laid_out(bias: Tensor) -> None:
    inputs, weight = matrices(5, 6, 6)
    torch.testing.assert_close(products.linear(inputs, weight, bias), inputs @ weight.t() + bias)


@pytest.mark.usefixtures("library")
def test_a_bias_that_is_tracked_gets_its_gradient() -> None:
    inputs, weight = matrices(5, 6, 6)
    bias = torch.zeros(6, requires_grad=True)
    products.linear(inputs, weight, bias).sum().backward()
    assert bias.grad is not None
    assert torch.equal(bias.grad, torch.full((6,), 5.0))


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
        (left.bfloat16(), right.bfloat16()),
    ]:
        assert torch.equal(products.product(one, other), one @ other)
    many = left.expand(2, 2, 3)
    assert torch.equal(products.linear(many, right.t()), many @ right)
    with pytest.raises(AssertionError), torch.no_grad():
        products.product(tracked, right)  # nobody differentiates here


@pytest.mark.parametrize(
    ("vendor", "capability", "mkl", "behind"),
    [
        ("AuthenticAMD", "AVX512", True, True),
        ("AuthenticAMD", "AVX512", False, False),
        ("AuthenticAMD", "AVX2", True, False),
        ("GenuineIntel", "AVX512", True, False),
        (None, "AVX512", True, False),
    ],
)
def test_onednn_is_for_processors_on_which_mkl_stops_at_avx2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vendor: str | None, capability: str, mkl: bool, behind: bool
) -> None:
    monkeypatch.setattr(products, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: mkl)
    if vendor:
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nvendor_id\t: {vendor}\n")
    assert products.mkl_is_behind.__wrapped__() is behind


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


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("side", [4, 8])
def test_a_networks_derivatives_in_single_precision_are_those_in_double(side: int) -> None:
    """With a convolution on a map of one or four pixels, which is a product of matrices, and a linear layer."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 6, 3, stride=4, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(6 * (side // 4) ** 2, 3)
    )
    images = torch.rand(4, 2, side, side, generator=generator)
    labels = torch.tensor([0, 1, 2, 1])
    mu = {name: torch.randn(value.shape, generator=generator) for name, value in parameters_of(model).items()}
    found = []
    for kind in (torch.float32, torch.float64):
        network = Network(model.to(kind), LocalTraining(epochs=1, batches=1, learning_rate=0.1))
        tape = network.tape(parameters_of(model), images.to(kind), labels)
        pulled = tape.pull({name: value.to(kind) for name, value in mu.items()}, parameters=True)
        assert pulled.parameters is not None
        found.append({"images": pulled.images, **{f"g {k}": v for k, v in tape.gradient.items()}, **pulled.parameters})
    for name, value in found[1].items():
        torch.testing.assert_close(found[0][name].double(), value, rtol=1e-3, atol=1e-5)
