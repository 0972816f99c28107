"""Products of matrices, by the faster one of torch's two libraries.

torch multiplies float32 matrices with MKL, which has AVX-512 kernels for Intel's processors only. oneDNN, which
computes the convolutions, has them for all, and multiplies matrices, too: on an AMD processor in half of the time
(docs/performance.md). torch offers that to its own compiler alone, under a private name, so it is tried out before it
is used.
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
    if _suits(inputs, weight) and mkl_is_behind() and works():
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


def _suits(left: Tensor, right: Tensor) -> bool:
    """Whether these are float32 matrices on the CPU of which autograd need not know."""
    plain = left.dtype == right.dtype == torch.float32 and left.device.type == right.device.type == "cpu"
    tracked = torch.is_grad_enabled() and (left.requires_grad or right.requires_grad)
    return plain and left.dim() == right.dim() == 2 and left.numel() > 0 and right.numel() > 0 and not tracked


def _onednn(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")
    return result


@cache
def mkl_is_behind() -> bool:
    """Whether this processor has AVX-512, and is not one of those for which MKL uses it."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    try:
        return "AuthenticAMD" in CPUINFO.read_text(errors="replace")
    except OSError:  # not Linux
        return False


@cache
def works() -> bool:
    """Whether this torch has oneDNN's product, and it is right."""
    left, right, bias = torch.arange(6.0).view(2, 3), torch.arange(12.0).view(3, 4), torch.arange(4.0)
    try:
        found = _onednn(left, right.t(), bias)
    except (AttributeError, RuntimeError, TypeError):
        return False
    return torch.equal(found, left @ right + bias)  # small integers, which float32 multiplies exactly
