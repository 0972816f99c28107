"""Priors on dummy images: what natural images, or this client's batch statistics, look like (Reg in the paper)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from undelta.attacker.replay import Replay
from undelta.engine import MomentPrior, Moments
from undelta.errors import ConfigError, MissingKnowledge
from undelta.observation import Observation

Penalty: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(images, labels) -> a differentiable scalar."""


@dataclass(frozen=True)
class OnMoments:
    """A penalty on what BatchNorms see on the replay's way, which has computed it anyway."""

    penalty: MomentPrior


@dataclass(frozen=True)
class Off:
    """A prior that would mislead here, and so says nothing; the note is for the user."""

    note: str


class Prior(Protocol):
    """Any callable that prepares a penalty for an observation; None or `Off` where it has nothing to say."""

    def __call__(self, observation: Observation, replay: Replay) -> Penalty | OnMoments | Off | None:
        """The penalty."""


@dataclass(frozen=True, kw_only=True)
class TotalVariation:
    """weight · (mean |∂x| + mean |∂y|), as Geiping et al. 2020 define it."""

    weight: float

    def __call__(self, observation: Observation, replay: Replay) -> Penalty:
        return lambda images, labels: self.weight * total_variation(images)


def total_variation(images: Tensor) -> Tensor:
    """Mean |∂x| + mean |∂y|; a direction in which the image is one pixel wide varies nothing."""
    zero = images.new_zeros(())
    down = (images[..., 1:, :] - images[..., :-1, :]).abs().mean() if images.shape[-2] > 1 else zero
    right = (images[..., :, 1:] - images[..., :, :-1]).abs().mean() if images.shape[-1] > 1 else zero
    return down + right


@dataclass(frozen=True, kw_only=True)
class ColorVariation:
    """Total variation of lightness and of the two color differences, each with a factor (docs/strongest.md).

    In photographs color varies less than lightness, and early layers see it less well: without this, fine color is
    noise. Images that have no three channels get plain total variation.
    """

    weight: float
    lightness: float = 1.0
    chroma: float = 3.0

    def __call__(self, observation: Observation, replay: Replay) -> Penalty:
        if observation.image.shape[0] != 3:
            return TotalVariation(weight=self.weight)(observation, replay)
        scales = torch.tensor([self.lightness, self.chroma, self.chroma]).view(3, 1)
        axes = (OPPONENT / OPPONENT.norm(dim=1, keepdim=True) * scales).to(observation.device, observation.dtype)
        return lambda images, labels: self.weight * total_variation(torch.einsum("kc,nchw->nkhw", axes, images))


OPPONENT = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 2.0, -1.0]])
"""Lightness, red against blue, green against both: orthogonal."""


@dataclass(frozen=True, kw_only=True)
class SquareNorm:
    """weight · mean x² (the ℓ2 prior of Yin et al. 2021)."""

    weight: float

    def __call__(self, observation: Observation, replay: Replay) -> Penalty:
        return lambda images, labels: self.weight * images.square().mean()


@dataclass(frozen=True, kw_only=True)
class LabelConsistency:
    """weight · mean ‖softmax f(x) − y‖²: the model should say what the dummy labels say (CPL: Wei et al. 2020)."""

    weight: float

    def __call__(self, observation: Observation, replay: Replay) -> Penalty:

        def penalty(images: Tensor, labels: Tensor) -> Tensor:
            outputs = replay.network.outputs(replay.start, images).softmax(1)
            if not labels.is_floating_point():
                labels = torch.nn.functional.one_hot(labels, outputs.shape[1]).to(outputs)
            return self.weight * (outputs - labels).square().sum(1).mean()

        return penalty


@dataclass(frozen=True, kw_only=True)
class EpochInvariance:
    """weight · the spread over epochs of a statistic of each epoch's images that no order changes (DLFA).

    The statistic is the pixelwise mean and mean square of an epoch's images (Dimitrov et al. 2022 leave it open).
    """

    weight: float

    def __call__(self, observation: Observation, replay: Replay) -> Penalty:

        def penalty(images: Tensor, labels: Tensor) -> Tensor:
            sets = images.view(-1, observation.num_samples, *images.shape[1:])  # (E, N, C, H, W)
            statistics = torch.stack([sets.mean(1), sets.square().mean(1)])  # (2, E, C, H, W)
            return self.weight * (statistics - statistics.mean(1, keepdim=True)).square().mean()

        return penalty


UNTOUCHED = (
    "the BatchNorm prior is off: the server's running statistics are those of a fresh network (mean 0, variance 1), "
    "which describe no images"
)

Source: TypeAlias = Literal["server", "client", "auto"]


@dataclass(frozen=True, kw_only=True)
class BatchNormStatistics:
    """weight · Σ_BN (‖μ* − μ‖₂ + ‖σ²* − σ²‖₂) over the inputs of every BatchNorm (Yin et al. 2021).

    ``source`` says whose statistics are the target: the server's running ones, or those of the client's own
    batches, recovered from the buffers it sent back; "auto" takes the client's where they are revealed. Without
    BatchNorm layers the penalty is zero. Statistics that no data have touched (mean 0, variance 1: a fresh network)
    are those of no images, and a prior on them prefers wrong ones to the truth; such layers are left out.
    """

    weight: float
    source: Source = "server"

    def __post_init__(self) -> None:
        if self.source not in ("server", "client", "auto"):
            raise ConfigError(f"expected source 'server', 'client' or 'auto', got {self.source!r}")

    def __call__(self, observation: Observation, replay: Replay) -> OnMoments | Off | None:
        """The penalty of one mini-batch; the replay averages it over all of them, each at its own point of the path."""
        found = batch_norm_targets(observation, self.source)
        if not found or self.weight == 0:
            return None
        targets = {name: target for name, target in found.items() if not untouched(*target)}
        if not targets:
            return Off(UNTOUCHED)

        def penalty(moments: Mapping[str, Moments]) -> Tensor:
            # Running variances are unbiased, and so are the moments.
            parts = [
                (mean - moments[name].mean).norm() + (variance - moments[name].variance).norm()
                for name, (mean, variance) in targets.items()
                if name in moments  # not a layer that the model never calls
            ]
            return self.weight * torch.stack(parts).sum()

        return OnMoments(penalty)


def untouched(mean: Tensor, variance: Tensor) -> bool:
    """Whether these are the running statistics of a fresh network, which has seen no data."""
    return bool((mean == 0).all() and (variance == 1).all())


def batch_norm_targets(observation: Observation, source: Source) -> dict[str, tuple[Tensor, Tensor]]:
    """Target mean and variance of every BatchNorm's input.

    Source "client": train-mode buffers after T = E·B steps with momentum m are r_T = (1−m)^T r_0 + (weighted batch
    statistics), so (r_T − (1−m)^T r_0) / (1 − (1−m)^T) is the weighted mean of the batch statistics, exactly.
    """
    targets: dict[str, tuple[Tensor, Tensor]] = {}
    if not any(key.endswith("running_mean") for key in observation.initial):
        return targets
    for name, module in observation.model(to_read=True).named_modules():
        if not isinstance(module, _BatchNorm) or module.running_mean is None:
            continue
        keys = [f"{name}.{buffer}" if name else buffer for buffer in ("running_mean", "running_var")]
        revealed = not observation.unknown and all(
            key in observation.received and not torch.equal(observation.initial[key], observation.received[key])
            for key in keys
        )
        if source == "server" or (source == "auto" and not revealed):
            targets[name] = (observation.initial[keys[0]], observation.initial[keys[1]])
            continue
        if not revealed:
            raise MissingKnowledge(
                f"the client's buffers of {name!r} were withheld or did not change (norm_mode 'eval'), or E or B is "
                "unknown, so they reveal no batch statistics. Use the server's: bn_source = server."
            )
        kept = _kept(observation, module, f"{name}.num_batches_tracked" if name else "num_batches_tracked")
        mean, variance = ((observation.received[key] - kept * observation.initial[key]) / (1 - kept) for key in keys)
        targets[name] = (mean, variance)
    return targets


def _kept(observation: Observation, module: _BatchNorm, counter: str) -> float:
    """The share of the old running statistics that is left after the client's steps."""
    steps = observation.epochs * observation.batches
    if module.momentum is not None:
        return float((1 - module.momentum) ** steps)
    # Momentum None means a cumulative average over all batches that the layer ever saw.
    seen = int(observation.initial[counter]) + steps
    return (seen - steps) / seen
