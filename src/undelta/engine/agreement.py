"""Whether a traced program does what its module does, with few copies of the parameters at any time."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor

from undelta.engine.losses import Loss
from undelta.engine.ops import given
from undelta.engine.program import Pool, Program
from undelta.seeding import stream
from undelta.updates import Update

LARGE = 10**6  # parameters


class _Each(Mapping[str, Tensor]):
    """Tensors that are made whenever they are asked for, and not kept."""

    def __init__(self, names: Mapping[str, Tensor], make: Callable[[str], Tensor]) -> None:
        self._names, self._make = names, make

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        return self._make(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def agrees(
    program: Program,
    derivatives: Loss,
    loss: Callable[[Tensor, Tensor], Tensor],
    constants: Mapping[str, Tensor],
    point: Update,
    module: Callable[[dict[str, Tensor], Tensor], Tensor],
    images: Tensor,
) -> bool:
    """Compare outputs, gradient and the gradient's derivatives with autograd's, in float64.

    A copy in float64 is twice the model, so there are never more than two of them beside a tape or a graph: what is
    compared is dropped entry by entry, a random direction μ is drawn again rather than kept, and the sweeps are
    run twice, before autograd's graph exists and after.
    """

    def exact(name: str) -> Tensor:
        value = constants[name].detach()
        return value.double() if value.is_floating_point() else value

    def direction(name: str) -> Tensor:
        shape, device = constants[name].shape, constants[name].device
        return torch.randn(shape, generator=stream("engine", "check", name), dtype=torch.float64).to(device)

    def swept(*, gradient: bool) -> Pool:
        with torch.no_grad():
            values = _Each(constants, exact), _Each(point, exact)
            return Pool(program, derivatives, *values, images.detach(), labels, gradient=gradient)

    mu = _Each(point, direction)
    images = images.detach().double().contiguous().requires_grad_()
    labels = torch.zeros(len(images), dtype=torch.int64, device=images.device)
    try:
        tape = swept(gradient=True)
    except (RuntimeError, LookupError):  # shapes that do not fit
        return False
    found, gradient = tape.outputs, tape.gradient
    del tape
    give_back(point)
    fits, products, seconds = list[bool](), list[Tensor](), dict[str, Tensor]()

    def first(name: str, value: Tensor) -> None:
        fits.append(near(gradient.pop(name), value))
        with torch.enable_grad():
            products.append(torch.dot(value.reshape(-1), mu[name].reshape(-1)))

    leaves = {name: exact(name).requires_grad_() for name in point}
    with torch.enable_grad():
        outputs = module({**{name: exact(name) for name in constants if name not in leaves}, **leaves}, images)
        if not near(found, outputs):
            return False
        with _taken(leaves, first), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Using backward.. with create_graph")  # no gradient stays on its leaf
            loss(outputs, labels).backward(inputs=list(leaves.values()), create_graph=True)
        product = torch.stack(products).sum() if products else images.new_zeros(())
    if not product.requires_grad:
        return False
    del outputs
    products.clear()
    give_back(point)
    with _taken(leaves, seconds.__setitem__):
        product.backward(inputs=[images, *leaves.values()])
    del leaves, product
    give_back(point)
    pulled = swept(gradient=False).pull(mu, parameters=True)
    fits.extend(near(value, torch.zeros_like(value)) for value in gradient.values())  # what the loss ignores
    for name, value in given(pulled.parameters).items():
        fits.append(near(value, seconds.get(name, torch.zeros_like(value))))
    by_images = torch.zeros_like(images) if images.grad is None else images.grad
    return all(fits) and near(pulled.images, by_images)


@contextmanager
def _taken(leaves: Mapping[str, Tensor], take: Callable[[str, Tensor], None]) -> Iterator[None]:
    """Take each leaf's gradient away as soon as a backward pass has it."""

    def hook(name: str) -> Callable[[Tensor], None]:
        def shown(leaf: Tensor) -> None:
            value, leaf.grad = leaf.grad, None
            take(name, given(value))

        return shown

    with ExitStack() as stack:
        for name, leaf in leaves.items():
            stack.callback(leaf.register_post_accumulate_grad_hook(hook(name)).remove)
        yield


def give_back(point: Update) -> None:
    """Return freed memory to the system where it is much; glibc would keep it for as long as the attack runs."""
    if sum(value.numel() for value in point.values()) >= LARGE and (
        trim := getattr(ctypes.CDLL(None), "malloc_trim", None)
    ):
        trim(0)


def near(found: Tensor, expected: Tensor) -> bool:
    """Whether they are equal but for rounding, measured by their size."""
    found, expected = found.detach(), expected.detach()
    tolerance = torch.finfo(expected.dtype).eps ** 0.5
    return found.shape == expected.shape and bool((found - expected).norm() <= tolerance * (expected.norm() + 1e-3))
