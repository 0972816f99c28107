"""What an update determines of the images behind it, whatever the attack: a local Bayesian Cramér-Rao bound.

With J = ∂u/∂x at the private images, noise of deviation σ on the update, and a Gaussian prior of images with
covariance C, no estimate has a smaller mean squared error than tr((JᵀJ/σ² + C⁻¹)⁻¹)/n (van Trees 1968; Gill and Levit
1995), as far as the update is linear around the truth. The inequality itself has the mean of JᵀJ over the prior; here
is its value at one point, the truth: a local bound.

With C = S², A = S JᵀJ S/σ² and a random vector z of signs in the basis of the prior, zᵀ S (I + A)⁻¹ S z has the trace
as its mean. In that basis C is diagonal, so that signs cost no variance where the update says nothing. Lanczos'
quadrature approaches the value from below, whatever the number of products: a bound that is too high, never too low. It
is fast after division by a diagonal D: for each image and ring of frequencies, one plus the root mean square of A's
rows, from two products with random signs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from undelta.errors import ConfigError
from undelta.evaluation.image_prior import ImagePrior, over_rings
from undelta.evaluation.jacobian import Jacobian
from undelta.evaluation.lanczos import Keep, Krylov, resumed
from undelta.evaluation.sent import Sent
from undelta.seeding import stream
from undelta.updates import Update, gaussian

TIGHT = 0.02  # of the trace: a remainder that is small enough, 0.1 dB
FEWEST = 8  # products before a remainder is believed
ASSUMPTIONS = (
    "local: the update is taken as linear around the private images",
    "the attacker's knowledge of images is a Gaussian prior; better knowledge can exceed the bound",
    "the attacker knows the training, the labels and the mini-batches",
    "one round; no other information about the images",
)


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """The least mean squared error that any attack can have at one noise, image by image, as PSNR in dB."""

    scale: float
    """The factor on the noise."""
    psnr: tuple[float, ...]
    """The ceiling. Products that are still missing can only lower it."""
    settled: tuple[float, ...]
    """An estimate of what it would be after all products."""
    error: float
    """The standard error of each image's value, from the random signs."""
    typical: tuple[float, ...]
    """The mean PSNR where the mean squared error is that of ``psnr``, and errors are distributed as the posterior's.

    A mean of logarithms is above the logarithm of the mean: by 0.4 dB where the error has ten degrees of freedom, by 2
    where it has two or three, as at large noise, where the mean color is the most of it.
    """
    products: int

    @property
    def mean(self) -> float:
        return sum(self.psnr) / len(self.psnr)

    @property
    def mean_typical(self) -> float:
        """The mean PSNR that no attack is expected to exceed, under the assumptions."""
        return sum(self.typical) / len(self.typical)

    @property
    def mean_settled(self) -> float:
        return sum(self.settled) / len(self.settled)

    @property
    def gap(self) -> float:
        """What more products would lower the ceiling by, about, in dB."""
        return self.mean - self.mean_settled


@dataclass(frozen=True, kw_only=True)
class Whitened:
    """A = S JᵀJ S in units of the noise, on coefficients of the prior: a symmetric matrix, as products."""

    jacobian: Jacobian = field(repr=False)
    sent: Sent = field(repr=False)
    prior: ImagePrior = field(repr=False)

    @property
    def root(self) -> Tensor:
        """S, which is diagonal, (C, H, W) or (N, C, H, W)."""
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


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """P − c with P = D^−½ (I + A/s²) D^−½ and c the least that an eigenvalue of P can be, as products."""

    whitened: Whitened = field(repr=False)
    scale: float
    """The factor s on the noise."""
    diagonal: Tensor = field(repr=False)
    """D, flat, at least one."""

    @property
    def least(self) -> float:
        """The least eigenvalue c of D⁻¹, below all of P's."""
        return float((1 / self.diagonal).min())

    def __call__(self, vector: Tensor) -> Tensor:
        inner = vector / self.diagonal.sqrt()
        return (inner + self.whitened(inner) / self.scale**2) / self.diagonal.sqrt() - self.least * vector

    def start(self, vector: Tensor) -> Tensor:
        """What Lanczos' method starts from, to find (I + A/s²)⁻¹ of a vector."""
        return vector / self.diagonal.sqrt()

    def solution(self, found: Krylov) -> Tensor:
        """(I + A/s²)⁻¹ of that vector, flat."""
        return found.shrunk_start(self.least) / self.least / self.diagonal.sqrt()

    def left(self, found: Krylov) -> float:
        """What is missing of the quadratic form, relative to what was found; an estimate.

        The last two quarters of the products, continued as a geometric series; no more than Gauss-Radau allows.
        """
        count = len(found.diagonal)
        low, high = found.bounds(self.least)
        if found.ended or count < 4:
            return (high - low) / low
        half, most = (found.cut(steps).bounds(self.least)[0] for steps in (count // 2, count * 3 // 4))
        rate = min(0.99, (low - most) / max(most - half, 1e-300))
        return min((low - most) * rate / (1 - rate), high - low) / low

    def enough(self, found: Krylov, tight: float = TIGHT) -> bool:
        """Whether no more than this share is missing."""
        return len(found.diagonal) >= FEWEST and self.left(found) < tight


def scaled(whitened: Whitened, scale: float, *, seed: int = 0, keep: Keep | None = None) -> Scaled:
    """The same matrix at one size of the noise, divided by its diagonal."""
    squares = torch.zeros(whitened.jacobian.shape, dtype=torch.float64, device=whitened.prior.variances.device)
    for probe in range(2):
        signs = whitened.signs(stream("evaluation", "bound", seed, "diagonal", probe)).flatten()
        product = resumed(whitened, signs, 1, f"diagonal {probe}", keep).first_product
        squares += product.view_as(squares).square() / 2
    return Scaled(whitened=whitened, scale=scale, diagonal=1 + over_rings(squares).sqrt().flatten() / scale**2)


def ceilings(
    whitened: Whitened,
    *,
    scales: Sequence[float] = (1.0,),
    probes: int = 2,
    products: int = 30,
    seed: int = 0,
    keep: Keep | None = None,
) -> tuple[Ceiling, ...]:
    """The bound at each scale of the noise, from at most ``products`` products for each of ``probes`` random signs."""
    if probes < 2:
        raise ConfigError(f"expected probes >= 2, since their spread is the error, got {probes=}")
    return tuple(
        _ceiling(scaled(whitened, scale, seed=seed, keep=keep), probes, products, seed, keep) for scale in scales
    )


def _ceiling(problem: Scaled, probes: int, products: int, seed: int, keep: Keep | None) -> Ceiling:
    whitened = problem.whitened
    count, pixels = whitened.jacobian.shape[0], whitened.size // whitened.jacobian.shape[0]
    errors, squares = (torch.zeros(probes, count, dtype=torch.float64) for _ in range(2))
    left = torch.zeros(probes, 1, dtype=torch.float64)
    taken = 2  # for the diagonal
    for probe in range(probes):
        signs = whitened.root * whitened.signs(stream("evaluation", "bound", seed, probe))
        start = problem.start(signs.flatten())
        found = resumed(problem, start, products, f"probe {probe} {problem.scale!r}", keep, problem.enough)
        solution = whitened.root * problem.solution(found).view_as(signs)
        errors[probe] = (signs / whitened.root * solution).flatten(1).sum(1).cpu() / pixels
        squares[probe] = (solution.flatten(1).square().sum(1).cpu()) / pixels**2
        left[probe] = problem.left(found)
        taken += len(found.diagonal)
    return Ceiling(
        scale=problem.scale,
        psnr=_psnr(errors),
        settled=_psnr(errors * (1 + left)),
        error=_error(errors),
        typical=tuple(a + b for a, b in zip(_psnr(errors), _jensen(errors, squares), strict=True)),
        products=taken,
    )


def _psnr(errors: Tensor) -> tuple[float, ...]:
    """Of each image, from the mean over the probes, (P, N)."""
    values: list[float] = (-10 * torch.log10(errors.mean(0).clamp_min(1e-30))).tolist()
    return tuple(values)


def _jensen(errors: Tensor, squares: Tensor) -> list[float]:
    """E[−10 log₁₀ q] + 10 log₁₀ E[q] of each image's squared error q, as if χ² with its mean and variance.

    With M⁻¹ the covariance of the error, E q = tr M⁻¹ and Var q = 2 tr M⁻², and |M⁻¹z|² has the mean tr M⁻².
    """
    freedom = errors.mean(0).square() / squares.mean(0)  # ν: χ² over ν has the variance 2/ν
    extra = (freedom / 2).log() - torch.special.digamma(freedom / 2)
    values: list[float] = (10 / math.log(10) * extra).tolist()
    return values


def _error(errors: Tensor) -> float:
    """The standard error in dB of an image's mean over the probes; its images have one relative spread, about."""
    relative = (errors.var(0) / errors.mean(0).square()).mean() / len(errors)
    return float(10 / math.log(10) * relative.sqrt())


def linear_reconstruction(
    whitened: Whitened,
    images: Tensor,
    *,
    scale: float = 1.0,
    products: int = 30,
    tight: float = TIGHT / 20,
    seed: int = 0,
    keep: Keep | None = None,
) -> Tensor:
    """What the best attacker on the linearized problem would see, (N, C, H, W): the posterior mean, one draw of noise.

    x̂ = mean + S (I + A)⁻¹ SJᵀ(J (x − mean) + n), with J and the noise n in units of the noise. Directions that the
    update fixes are those of x, and what it leaves free is the prior's mean. Only J (x − mean) + n, which an attacker
    sees, goes in, so that too few products give a worse picture, never a better one.
    """
    generator, device = stream("evaluation", "bound", seed, "noise"), whitened.prior.variances.device
    noise = {name: gaussian(value, generator) for name, value in whitened.jacobian.update.items()}
    seen = whitened.push(whitened.prior.whitened(images.to(device, torch.float64)))
    seen = {name: value / scale**2 + noise[name] / scale for name, value in seen.items()}
    problem = scaled(whitened, scale, seed=seed, keep=keep)
    enough, start = partial(problem.enough, tight=tight), problem.start(whitened.pull(seen))
    if not start.any():  # nothing is sent
        return whitened.prior.mean.expand(whitened.jacobian.shape).clone()
    found = resumed(problem, start, products, f"picture {scale!r}", keep, enough)
    coefficients = whitened.root * problem.solution(found).view(whitened.jacobian.shape)
    return whitened.prior.mean + whitened.prior.deviations(coefficients)
