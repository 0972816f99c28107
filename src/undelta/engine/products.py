"""Products of matrices, by the faster one of torch's two libraries.

torch multiplies float32 matrices with MKL, which has AVX-512 kernels for Intel's processors only. oneDNN, which
computes the convolutions, has them for all, and multiplies matrices, too: on an AMD processor in less than two thirds
of the time (docs/performance.md). torch exposes that only to its own compiler, under a private name, so it is tried out
before it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

CPUINFO = Path("/proc/cpuinfo")


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Inputs times the transposed weight, plus the bias: x Wᵀ + b."""
    if _suits(inputs, weight, *([] if bias is None else [bias])) and mkl_is_behind() and works():
        return _onednn(inputs, weight, bias)
    return F.linear(inputs, weight, bias)


def product(left: Tensor, right: Tensor) -> Tensor:
    """The product of two matrices."""
    return linear(left, right.t())


def sum_of_products(pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """The sum of the products of one or more pairs."""
    total, *others = (product(left, right) for left, right in pairs)
    for other in others:
        total.add_(other)
    return total


def _suits(left: Tensor, right: Tensor, *others: Tensor) -> bool:
    """Whether these are float32 matrices, and other tensors, on the CPU that autograd does not track."""
    if left.dim() != 2 or right.dim() != 2 or not left.numel() or not right.numel():
        return False
    tensors = (left, right, *others)
    if torch.is_grad_enabled() and any(one.requires_grad for one in tensors):
        return False
    return all(one.dtype == torch.float32 and one.device.type == "cpu" for one in tensors)


def _onednn(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if bias is not None:
        bias = bias.contiguous()  # it is read as if it were
    result: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")
    return result


@cache
def mkl_is_behind() -> bool:
    """Whether MKL multiplies here, on a processor of AMD's that has AVX-512."""
    backends = torch.backends
    if not backends.mkl.is_available() or backends.cpu.get_cpu_capability() != "AVX512":
        return False
    try:
        return "AuthenticAMD" in CPUINFO.read_text(errors="replace")
    except OSError:  # not Linux
        return False


@cache
def works() -> bool:
    """Whether this torch has oneDNN's product, and it is right."""
    numbers = torch.arange(12.0, dtype=torch.float32, device="cpu")
    left, right, bias = numbers[:6].view(2, 3), numbers.view(3, 4), numbers[:4]
    try:
        found = _onednn(left, right.t(), bias)
    except (AttributeError, RuntimeError, TypeError):
        return False
    return torch.equal(found, left @ right + bias)  # small integers, which float32 multiplies exactly
