"""Local training, as the client does it and as an attacker replays it.

`rollout` is the engine: SGD steps on given mini-batches, with the exact pullback of their sum. It is
the same map G of the paper (AWA eq_delta_theta) on both sides of the boundary; only its inputs differ.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from undelta.errors import ConfigError
from undelta.updates import Update, inner

LossName: TypeAlias = Literal["cross_entropy", "l2"]
NormMode: TypeAlias = Literal["train", "eval"]


def l2(outputs: Tensor, labels: Tensor) -> Tensor:
    """Squared distance of the outputs to the one-hot (or soft) labels, averaged over the samples."""
    targets = F.one_hot(labels, outputs.shape[1]).to(outputs) if labels.dim() == 1 else labels
    return (outputs - targets).square().sum(1).mean()


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"cross_entropy": F.cross_entropy, "l2": l2}


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """What the server assigns to a client for one round (AWA rem_attacker, items 4 and 6)."""

    epochs: int
    batches: int
    learning_rate: float
    loss: LossName = "cross_entropy"
    norm_mode: NormMode = "train"

    def __post_init__(self) -> None:
        for key in ("epochs", "batches"):
            if getattr(self, key) < 1:
                raise ConfigError(f"expected {key} >= 1, got {key}={getattr(self, key)}")
        if not 0 < self.learning_rate < float("inf"):
            raise ConfigError(f"expected learning_rate > 0, got learning_rate={self.learning_rate}")
        if self.loss not in LOSSES:
            raise ConfigError(f"unknown loss {self.loss!r}; choose from {', '.join(LOSSES)}")
        if self.norm_mode not in ("train", "eval"):
            raise ConfigError(f"expected norm_mode 'train' or 'eval', got {self.norm_mode!r}")

    def sizes(self, num_samples: int) -> tuple[int, ...]:
        """The sizes of an epoch's mini-batches: equal ones, the last one takes what is left.

        Mini-batches hold ceil(N/B) samples, as a data loader cuts them; where that would leave fewer
        than B mini-batches (N=9, B=4), they hold floor(N/B) and the last one is larger.
        """
        if num_samples < self.batches:
            raise ConfigError(
                f"{num_samples} samples cannot fill {self.batches} mini-batches; lower batches or raise num_samples"
            )
        size = -(-num_samples // self.batches)
        if size * (self.batches - 1) >= num_samples:
            size = num_samples // self.batches
        return (*[size] * (self.batches - 1), num_samples - size * (self.batches - 1))


class Network:
    """A model as a pure function of its parameters: the loss of a mini-batch and its gradients."""

    def __init__(self, model: nn.Module, training: LocalTraining) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.model.train(training.norm_mode == "train")
        for module in self.model.modules():
            if isinstance(module, _BatchNorm) and module.training:
                module.track_running_stats = False  # batch statistics only; leave the buffers alone
            # Nobody can replay the client's hidden dropout masks.
            if isinstance(module, _DropoutNd):
                module.eval()
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
        self._loss = LOSSES[training.loss]

    def outputs(self, parameters: Update, images: Tensor) -> Tensor:
        """The model's outputs at the given parameters."""
        with sdpa_kernel(SDPBackend.MATH):  # the fused attention kernels have no second derivative
            outputs: Tensor = functional_call(self.model, parameters, (images,))
        return outputs

    def loss(self, parameters: Update, images: Tensor, labels: Tensor) -> Tensor:
        """The mini-batch's mean loss at the given parameters."""
        return self._loss(self.outputs(parameters, images), labels)

    def activations(self, image_shape: tuple[int, int, int]) -> int:
        """How many values the modules put out for one image: what a graph of it has to hold, about."""
        counts: list[int] = []

        def count(module: nn.Module, inputs: object, output: object) -> None:
            if isinstance(output, Tensor):
                counts.append(output.numel())

        leaves = [module for module in self.model.modules() if not list(module.children())]
        hooks = [module.register_forward_hook(count) for module in leaves]
        parameter = next(self.model.parameters())
        try:
            with torch.no_grad():  # two images, since BatchNorm may refuse one
                self.model(torch.zeros(2, *image_shape, dtype=parameter.dtype, device=parameter.device))
        finally:
            for hook in hooks:
                hook.remove()
        return sum(counts) // 2

    def gradient(self, parameters: Update, images: Tensor, labels: Tensor, *, graph: bool = False) -> Update:
        """∇θ of the loss; with ``graph``, differentiable in the parameters, images and soft labels."""
        leaves = parameters if graph else {name: value.detach() for name, value in parameters.items()}
        for value in leaves.values():
            value.requires_grad_()
        with torch.enable_grad():
            loss = self.loss(leaves, images, labels)
            # A parameter that the loss ignores has gradient zero; it is not an error.
            gradients = torch.autograd.grad(
                loss, list(leaves.values()), create_graph=graph, allow_unused=True, materialize_grads=True
            )
        return dict(zip(leaves, gradients, strict=True))


class Step(NamedTuple):
    """One SGD step: a mini-batch and its learning rate."""

    images: Tensor  # (n, C, H, W), normalized
    labels: Tensor  # (n,) classes, or (n, classes) probabilities
    learning_rate: float


class Pulled(NamedTuple):
    """What a rollout's pullback returns: cotangents of its inputs."""

    images: list[Tensor]  # one per step
    labels: list[Tensor | None]  # one per step; None for class labels
    start: Update | None


Pullback: TypeAlias = Callable[[Update], Pulled]


def rollout(
    network: Network, start: Update, steps: Sequence[Step], *, pull_start: bool = False, keep: int = 1
) -> tuple[Update, Pullback]:
    """SGD from ``start`` over ``steps``: the update −Σ η g (AWA eq_delta_theta) and its exact pullback.

    Only first-order gradients are taken on the way, and only the last ``keep`` steps' graphs are kept; the pullback
    walks back and recomputes the others one at a time. With the default, memory is that of one mini-batch and one
    parameter copy per step. With μ = ∂/∂(update): image cotangent −η ∂⟨μ,g⟩/∂x, then μ ← μ − η ∂⟨μ,g⟩/∂θ (the
    Hessian term). Σ η g is accumulated rather than taken as a difference of parameters, which would cancel in float32.

    ``pull_start`` also returns the cotangent of the starting point, at the price of one more derivative.
    """
    update = {name: torch.zeros_like(value) for name, value in start.items()}
    points: list[Update] = []
    tape: list[_Taped] = []
    for index, step in enumerate(steps):
        point = {name: (value + update[name]).detach() for name, value in start.items()}
        points.append(point)
        if index + keep < len(steps):
            gradient = network.gradient(point, step.images.detach(), step.labels.detach())
        else:
            tape.append(_Taped(network, point, step))
            gradient = tape[-1].gradient
        for name, value in gradient.items():
            update[name].sub_(value.detach(), alpha=step.learning_rate)

    def pullback(cotangent: Update) -> Pulled:
        mu, images, labels = cotangent, list[Tensor](), list[Tensor | None]()
        for index in reversed(range(len(steps))):
            taped = tape.pop() if tape else _Taped(network, points[index], steps[index])
            pulled = taped.pull(mu, parameters=index > 0 or pull_start)
            rate = steps[index].learning_rate
            images.append(pulled.images * -rate)
            labels.append(None if pulled.labels is None else pulled.labels * -rate)
            if pulled.start is not None:
                mu = {name: torch.sub(mu[name], value, alpha=rate) for name, value in pulled.start.items()}
        end = {name: mu[name] - cotangent[name] for name in mu} if pull_start else None
        return Pulled(images[::-1], labels[::-1], end)

    return update, pullback


class _Taped:
    """The gradient of one step with its graph, ready for one pull."""

    class Pull(NamedTuple):
        images: Tensor
        labels: Tensor | None
        start: Update | None

    def __init__(self, network: Network, point: Update, step: Step) -> None:
        self.point = {name: value.detach().requires_grad_() for name, value in point.items()}
        self.images = step.images.detach().requires_grad_()
        soft = step.labels.is_floating_point()
        self.labels = step.labels.detach().requires_grad_(soft)
        self.gradient = network.gradient(self.point, self.images, self.labels, graph=True)

    def pull(self, mu: Update, *, parameters: bool) -> Pull:
        """The derivatives of ⟨mu, g⟩; those for the parameters only where asked, since they cost the most."""
        wanted = [self.images]
        if self.labels.requires_grad:
            wanted.append(self.labels)
        if parameters:
            wanted.extend(self.point.values())
        with torch.enable_grad():
            product = inner(self.gradient, mu)
        pulled = list(torch.autograd.grad(product, wanted, allow_unused=True, materialize_grads=True))
        images = pulled.pop(0)
        labels = pulled.pop(0) if self.labels.requires_grad else None
        start = dict(zip(self.point, pulled, strict=True)) if parameters else None
        return self.Pull(images, labels, start)
