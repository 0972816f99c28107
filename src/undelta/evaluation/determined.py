"""What an update determines of the images behind it, whatever the attack: a local Bayesian Cramér-Rao bound.

With J = ∂u/∂x at the private images, noise of deviation σ on the update, and a Gaussian prior of images with
covariance C, no estimate has a smaller mean squared error than tr((JᵀJ/σ² + C⁻¹)⁻¹)/n (van Trees 1968; Gill and Levit
1995), as far as the update is linear around the truth. The inequality itself has the mean of JᵀJ over the prior; here
is its value at one point, the truth: a local bound.

With C = S², A = S JᵀJ S/σ² and a random vector z of signs in the basis of the prior, zᵀ S (I + A)⁻¹ S z has the trace
as its mean. Lanczos' quadrature bounds it from both sides, at any σ from the same products. In that basis C is
diagonal, so that signs cost no variance where the update says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from undelta.errors import ConfigError
from undelta.evaluation.image_prior import ImagePrior
from undelta.evaluation.jacobian import Jacobian
from undelta.evaluation.lanczos import Keep, Krylov, resumed
from undelta.evaluation.sent import Sent
from undelta.seeding import stream
from undelta.updates import Update, gaussian

TIGHT = 0.02  # of the trace: a gap between the quadrature's bounds that is small enough, 0.1 dB
ASSUMPTIONS = (
    "local: the update is taken as linear around the private images",
    "the attacker's knowledge of images is a Gaussian prior; better knowledge can exceed the bound",
    "the attacker knows the training, the labels and the mini-batches",
    "one round; no other information about the images",
)


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """The best PSNR that any attack can be expected to reach at one noise, image by image, in dB."""

    scale: float
    """The factor on the noise."""
    psnr: tuple[float, ...]
    """From the quadrature's lower bound of the error: the ceiling. About infinite products would lower it to
    ``settled``."""
    settled: tuple[float, ...]
    """From the quadrature's upper bound of the error."""
    error: float
    """The standard error of each image's value, from the random signs."""
    products: int

    @property
    def mean(self) -> float:
        return sum(self.psnr) / len(self.psnr)

    @property
    def mean_settled(self) -> float:
        return sum(self.settled) / len(self.settled)

    @property
    def gap(self) -> float:
        """What more products could still lower the ceiling by, at most, in dB."""
        return self.mean - self.mean_settled


@dataclass(frozen=True, kw_only=True)
class Whitened:
    """A = S JᵀJ S in units of the noise, on coefficients of the prior: a symmetric matrix, as products."""

    jacobian: Jacobian = field(repr=False)
    sent: Sent = field(repr=False)
    prior: ImagePrior = field(repr=False)

    @property
    def root(self) -> Tensor:
        """S, which is diagonal, (C, H, W)."""
        return self.prior.variances.sqrt()

    @property
    def size(self) -> int:
        return math.prod(self.jacobian.shape)

    def push(self, coefficients: Tensor) -> Update:
        """J S c in units of the noise."""
        pixels = self.prior.deviations(self.root * coefficients.view(self.jacobian.shape))
        return self.sent.whitened(self.jacobian.push(pixels))

    def pull(self, cotangent: Update) -> Tensor:
        """The transpose of `push`, flat."""
        pixels = self.jacobian.pull(self.sent.transposed(cotangent))
        return (self.root * self.prior.coefficients(pixels)).flatten()

    def __call__(self, coefficients: Tensor) -> Tensor:
        return self.pull(self.push(coefficients))

    def signs(self, generator: torch.Generator) -> Tensor:
        """Random signs, (N, C, H, W)."""
        shape = self.jacobian.shape
        signs = torch.randint(0, 2, shape, generator=generator).to(self.prior.variances)
        return signs * 2 - 1


def ceilings(
    whitened: Whitened,
    *,
    scales: Sequence[float] = (1.0,),
    probes: int = 2,
    products: int = 60,
    seed: int = 0,
    keep: Keep | None = None,
) -> tuple[Ceiling, ...]:
    """The bound at each scale of the noise, from ``products`` products or fewer for each of ``probes`` random signs."""
    if probes < 2:
        raise ConfigError(f"expected probes >= 2, since their spread is the error, got {probes=}")
    count, pixels = whitened.jacobian.shape[0], whitened.size // whitened.jacobian.shape[0]
    low, high = (torch.zeros(probes, len(scales), count, dtype=torch.float64) for _ in range(2))
    taken = 0
    for probe in range(probes):
        signs = whitened.signs(stream("evaluation", "bound", seed, probe))
        start = whitened.root * signs
        found = resumed(whitened, start.flatten(), products, f"probe {probe}", keep, _tight(scales))
        taken += len(found.diagonal)
        for values, space in ((low, found), (high, found.larger())):
            for index, scale in enumerate(scales):
                errors = start * space.shrunk_start(scale**2).view_as(start)
                values[probe, index] = errors.flatten(1).sum(1).cpu() / pixels
    return tuple(
        Ceiling(
            scale=scale,
            psnr=_psnr(low[:, index]),
            settled=_psnr(torch.maximum(low, high)[:, index]),
            error=_error(low[:, index]),
            products=taken,
        )
        for index, scale in enumerate(scales)
    )


def _psnr(errors: Tensor) -> tuple[float, ...]:
    """Of each image, from the mean over the probes, (P, N)."""
    values: list[float] = (-10 * torch.log10(errors.mean(0).clamp_min(1e-30))).tolist()
    return tuple(values)


def _error(errors: Tensor) -> float:
    """The standard error in dB of an image's mean over the probes; its images have one relative spread, about."""
    relative = (errors.var(0) / errors.mean(0).square()).mean() / len(errors)
    return float(10 / math.log(10) * relative.sqrt())


def _tight(scales: Sequence[float]) -> Callable[[Krylov], bool]:
    def enough(found: Krylov) -> bool:
        if found.ended:
            return True
        for scale in scales:
            low, high = found.bounds(scale**2)
            if high - low > TIGHT * low:
                return False
        return True

    return enough


def linear_reconstruction(
    whitened: Whitened,
    images: Tensor,
    *,
    scale: float = 1.0,
    products: int = 40,
    seed: int = 0,
    keep: Keep | None = None,
) -> Tensor:
    """What the best attacker on the linearized problem would see, (N, C, H, W): the posterior mean, one draw of noise.

    x̂ = x − S (I + A)⁻¹ (S⁻¹(x − mean) − SJᵀ n), with n the noise in its own units. Directions that the update fixes are
    those of x, and what it leaves free is the prior's mean.
    """
    generator, device = stream("evaluation", "bound", seed, "noise"), whitened.prior.variances.device
    noise = {name: gaussian(value, generator) for name, value in whitened.jacobian.update.items()}
    truth = images.to(device, torch.float64)
    start = whitened.prior.whitened(truth).flatten() - whitened.pull(noise) / scale
    found = resumed(whitened, start, products, f"picture {scale!r}", keep)
    missed = whitened.root * found.shrunk_start(scale**2).view(whitened.jacobian.shape)
    return truth - whitened.prior.deviations(missed)
