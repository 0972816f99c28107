"""A model as a pure function of its parameters: a mini-batch's gradient, and that gradient's derivatives."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from undelta.engine import ranks
from undelta.engine.agreement import agrees, give_back, near
from undelta.engine.allocator import keep_freed_memory
from undelta.engine.losses import derivatives_of
from undelta.engine.moments import Part, Slope, centered_and_squares
from undelta.engine.norms import ONE_VALUE
from undelta.engine.program import Pool, Program, Pull
from undelta.engine.tracing import trace
from undelta.errors import ConfigError
from undelta.training import LocalTraining
from undelta.updates import Update, inner

MEMORY = 2**31  # bytes
HELD = 4  # values that a tape holds per value that the network computes, about: values, adjoints, tangents
FEW = 4  # images on which a trace is checked
SMALL = (16, 32)  # or two that are cut to this side, if those will do
ENOUGH = 16  # values over which a BatchNorm's statistics are those of no special case


class Tape(Protocol):
    """One mini-batch at one point: its gradient, and the way back through it."""

    @property
    def gradient(self) -> Update:
        """∇θ of the loss, the caller's to change; empty where it was not wanted."""

    def pull(self, mu: Update, *, parameters: bool, sources: Mapping[str, Slope] | None = None) -> Pull:
        """The derivatives of ⟨mu, g⟩, plus what ``sources`` feed into the inputs of BatchNorms, by name.

        Those by the parameters only where asked, since they cost the most.
        """

    def push(self, mu: Update, images: Tensor) -> Update:
        """The tangent of g as the parameters move along ``mu`` (empty: they stay) and the images along ``images``."""

    def moments(self) -> dict[str, Part]:
        """Of what every BatchNorm saw, by name."""


@dataclass
class Known:
    """What is found out about a network as it is used; the same of all that are made by the same code."""

    program: Program | None
    checked: bool = False
    couples: bool | None = None
    activations: dict[tuple[int, int, int], int] = field(default_factory=dict)
    resting: dict[tuple[int, int, int], int] = field(default_factory=dict)


class Network:
    """A model, its loss and its mode, ready to be evaluated at any parameters.

    A module made of well-known layers is traced once, and its derivatives are swept by hand (`program`); any other is
    left to autograd. Both give the same numbers, the first one faster. It has the model's own tensors, not copies of
    them, and never writes to them.
    """

    def __init__(self, model: nn.Module, training: LocalTraining, known: Known | None = None) -> None:
        keep_freed_memory()
        self.model = _sharing(model)
        self.model.train(training.norm_mode == "train")
        for module in self.model.modules():
            if isinstance(module, _BatchNorm) and module.training:
                module.track_running_stats = False  # batch statistics only; leave the buffers alone
            # Nobody can replay the client's hidden dropout masks.
            if isinstance(module, _DropoutNd):
                module.eval()
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
        self.shares_statistics = ranks.shared() and ranks.share_statistics(self.model)
        self._loss, self._derivatives = training.criterion, derivatives_of(training)
        self.known = known or Known(trace(self.model))
        self.memory = MEMORY  # what a rollout may keep in order to save time
        self._trained = [name for name, value in model.named_parameters() if value.requires_grad]
        self._constants: dict[str, Tensor] = {
            name: value.detach() for name, value in (*self.model.named_parameters(), *self.model.named_buffers())
        }

    def another(self) -> Network:
        """The same network with a memory limit of its own: what is found out about one is known of both."""
        return copy.copy(self)

    @property
    def start(self) -> Update:
        """The parameters that training moves, as the model has them."""
        return {name: self._constants[name] for name in self._trained}

    def outputs(self, parameters: Update, images: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):  # the fused attention kernels have no second derivative
            try:
                outputs: Tensor = functional_call(self.model, parameters, (images,))
            except ValueError as problem:
                if "per channel" not in str(problem):
                    raise
                raise ConfigError(ONE_VALUE) from problem
        return outputs

    def loss(self, parameters: Update, images: Tensor, labels: Tensor) -> Tensor:
        """The mini-batch's mean loss at the given parameters."""
        return self._loss(self.outputs(parameters, images), labels)

    def gradient(self, parameters: Update, images: Tensor, labels: Tensor) -> Update:
        """∇θ of the loss."""
        return self.tape(parameters, images, labels).gradient

    def tape(self, point: Update, images: Tensor, labels: Tensor, *, share: float = 1.0, gradient: bool = True) -> Tape:
        """The mini-batch's mean loss times ``share``, differentiated; without ``gradient``, only for its pull."""
        point = {name: value.detach() for name, value in point.items()}
        images, labels = images.detach().contiguous(), labels.detach()
        with torch.no_grad():
            self._check(images)
            if self.known.program:
                given = (self.known.program, self._derivatives, self._constants, point, images, labels)
                return Pool(*given, share=share, gradient=gradient)
        return AutogradTape(self, point, images, labels, share)

    def _check(self, images: Tensor) -> None:
        """Give the traced operations up if they do not do what the module does, which may do more than a trace shows.

        Once, on a few images, in float64: outputs, gradient, and the gradient's derivatives.
        """
        if self.known.checked or self.known.program is None:
            return
        self.known.checked = True
        point = self.start
        give_back(point)
        given = (self.known.program, self._derivatives, self._loss, self._constants, point)
        sizes = (images[:2, ..., :side, :side] for side in SMALL)
        few = next((part for part in sizes if self._takes(part)), images[:FEW])
        if not agrees(*given, self.outputs, few):
            self.known.program = None
        give_back(point)

    def _takes(self, images: Tensor) -> bool:
        """Whether images of this size fit the model, and are enough for statistics: a trace is the same at any size."""
        counts = [ENOUGH]

        def count(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            counts.append(inputs[0].numel() // inputs[0].shape[1])

        norms = [module for module in self.model.modules() if isinstance(module, _BatchNorm) and module.training]
        hooks = [module.register_forward_pre_hook(count) for module in norms]
        try:
            self.outputs(self._constants, images)
        except (RuntimeError, ConfigError):
            return False
        finally:
            for hook in hooks:
                hook.remove()
        return min(counts) >= ENOUGH

    def couples(self, images: Tensor) -> bool:
        """Whether the samples of a mini-batch see one another, so that it cannot be cut into parts."""
        if self.known.couples is None:
            with torch.no_grad():
                self._check(images)
            if self.known.program:
                self.known.couples = self.known.program.couples
            elif any(isinstance(module, _BatchNorm) and module.training for module in self.model.modules()):
                self.known.couples = True
            else:  # a custom layer may do anything: ask it
                parameters: Update = dict(self.model.named_parameters())
                with torch.no_grad():
                    together, alone = (self.outputs(parameters, part) for part in (images[:2], images[:1]))
                self.known.couples = not near(together[:1], alone)
        return self.known.couples

    def resting(self, image_shape: tuple[int, int, int]) -> int:
        """How many bytes a tape holds for one image until it is pulled; for an autograd tape, as many as in use."""
        if self.known.program is None:
            return self.active(image_shape)
        if image_shape not in self.known.resting:
            parameter = next(self.model.parameters())
            images = torch.zeros(2, *image_shape, dtype=parameter.dtype, device=parameter.device)
            labels = torch.zeros(2, dtype=torch.long, device=parameter.device)
            with torch.no_grad():
                given = (self.known.program, self._derivatives, self._constants, self.start, images, labels)
                self.known.resting[image_shape] = Pool(*given, gradient=False).held // 2
        return self.known.resting[image_shape]

    def active(self, image_shape: tuple[int, int, int]) -> int:
        """How many bytes a tape holds for one image while it is made or pulled, about."""
        counted = HELD * next(self.model.parameters()).element_size() * self.activations(image_shape)
        if self.known.program is None:
            return counted
        return max(counted, 2 * self.resting(image_shape))  # what functions compute, no module counts

    def activations(self, image_shape: tuple[int, int, int]) -> int:
        """How many values the modules put out for one image: what a tape of it has to hold, about."""
        if image_shape in self.known.activations:
            return self.known.activations[image_shape]
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
        self.known.activations[image_shape] = sum(counts) // 2
        return self.known.activations[image_shape]


def _sharing(model: nn.Module) -> nn.Module:
    """A copy of the model with the same tensors; none of them requires a gradient."""
    parameters = {id(value): nn.Parameter(value.detach(), requires_grad=False) for value in model.parameters()}
    return copy.deepcopy(model, {**parameters, **{id(value): value.detach() for value in model.buffers()}})


class AutogradTape:
    """A tape for any module: double backward."""

    def __init__(self, network: Network, point: Update, images: Tensor, labels: Tensor, share: float) -> None:
        self.point = {name: value.detach().requires_grad_() for name, value in point.items()}
        self.images = images.detach().requires_grad_()
        self.labels = labels.detach().requires_grad_(labels.is_floating_point())
        self._norm_inputs: dict[str, Tensor] = {}
        hooks = [
            module.register_forward_pre_hook(self._keep(name))
            for name, module in network.model.named_modules()
            if isinstance(module, _BatchNorm)
        ]
        try:
            with torch.enable_grad():
                self._loss = loss = network.loss(self.point, self.images, self.labels) * share
                # A parameter that the loss ignores has gradient zero; it is not an error.
                gradients = torch.autograd.grad(
                    loss, list(self.point.values()), create_graph=True, allow_unused=True, materialize_grads=True
                )
        finally:
            for hook in hooks:
                hook.remove()
        self._gradient = dict(zip(self.point, gradients, strict=True))

    def _keep(self, name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            self._norm_inputs[name] = arguments[0]

        return hook

    @property
    def gradient(self) -> Update:
        return {name: value.detach().clone() for name, value in self._gradient.items()}  # the graph needs its own

    def pull(self, mu: Update, *, parameters: bool, sources: Mapping[str, Slope] | None = None) -> Pull:
        wanted = [self.images]
        if self.labels.requires_grad:
            wanted.append(self.labels)
        if parameters:
            wanted.extend(self.point.values())
        with torch.enable_grad():
            outputs = [inner(self._gradient, mu)]
        cotangents = [torch.ones_like(outputs[0])]
        for name, (factor, shift) in (sources or {}).items():
            values = self._norm_inputs[name]
            shape = (1, -1, *[1] * (values.dim() - 2))
            outputs.append(values)
            cotangents.append(values.detach() * factor.view(shape) + shift.view(shape))
        pulled = list(torch.autograd.grad(outputs, wanted, cotangents, allow_unused=True, materialize_grads=True))
        images = pulled.pop(0)
        labels = pulled.pop(0) if self.labels.requires_grad else None
        return Pull(images, labels, dict(zip(self.point, pulled, strict=True)) if parameters else None)

    def push(self, mu: Update, images: Tensor) -> Update:
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(self._loss, [self.images], create_graph=True)
            tangent = (slope * images).sum()
            if mu:
                tangent = tangent + inner(self._gradient, mu)
        wanted = list(self.point.values())
        pushed = torch.autograd.grad(tangent, wanted, allow_unused=True, materialize_grads=True)
        return dict(zip(self.point, pushed, strict=True))

    def moments(self) -> dict[str, Part]:
        parts = {}
        for name, values in self._norm_inputs.items():
            mean, _, squares = centered_and_squares(values.detach())
            parts[name] = Part(values.numel() / values.shape[1], mean, squares)
        return parts
