"""The span of a layer's inputs, read off its update: a test whether an update contains given images, and a prior.

The update of a layer's weight matrix is a sum of outer products, ΔW = Σ δ ⊗ a, over all inputs a that the layer saw, so
they span its row space. Where they are fewer than the matrix is wide and high, most directions are free, and the inputs
that a client's own image causes lie in the span, while those of any other image stick out. So a server that *guesses*
an image can confirm the guess with one forward pass (docs/threat-model.md), and an attack can move its dummy images
into the span. All of this needs neither labels nor learning rate nor epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from undelta.attacker.priors import Penalty, batch_norm_targets
from undelta.attacker.remember import remembered
from undelta.attacker.replay import Replay
from undelta.attacker.replays import observed_update, spanned_update
from undelta.attacker.spiked import leading
from undelta.errors import MissingKnowledge
from undelta.observation import Observation
from undelta.updates import along

FILL = 0.5  # of a matrix's smaller side; more inputs than that span too much of it to tell anything
DRIFT = 4  # directions of a span for every input: it changes while the client trains, and each change adds to the span
CHUNK = 32  # images of a forward pass
TINY = 1e-12
SMALLEST = 1e-7  # share outside: what rounding leaves of the truth


@dataclass(frozen=True, kw_only=True)
class Span:
    """The directions that one layer's update holds, (rank, width), and how many inputs of that width an image has."""

    name: str
    directions: Tensor
    positions: int = 1
    """How many of them one image has."""
    trust: Tensor | None = None
    """How much of each direction is true where the update has noise in it, (rank,); None: all of it."""

    def outside(self, rows: Tensor) -> Tensor:
        """The share of each image's inputs (n, positions, width), by energy, that the span does not hold, (n,)."""
        held, whole = self._energies(rows)
        return (1 - held.sum(1) / whole).clamp_min(TINY)

    def unexplained(self, rows: Tensor) -> Tensor:
        """The share that the span would not hold without noise, plus what noise hides of inputs like these, (n,).

        Noise turns the span, so that even the private inputs stick out of it, and pulling others further in than those
        fits noise. Of an input along a true direction the turned one sees cos² of the energy, so what it sees is
        divided by that. What noise hides has no gradient: it only keeps the logarithm from falling without end.
        """
        held, whole = self._energies(rows)
        if self.trust is None:
            return 1 - held.sum(1) / whole
        used = self.trust > 0
        held = held[:, used]
        meant = (held / self.trust[used]).sum(1)
        hidden = (meant - held.sum(1)) / meant.clamp_min(TINY)
        return (1 - meant / whole).clamp_min(0) + hidden.detach()

    def survives(self, images: int) -> bool:
        """Whether noise leaves a direction for each input of so many images; the rest alone would say too little."""
        return self.trust is None or int((self.trust > 0).sum()) >= images * self.positions

    def _energies(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Energy of each image's inputs along each direction, (n, rank), and in total, (n,)."""
        return (rows @ self.directions.T).square().sum(1), rows.square().sum((1, 2)).clamp_min(TINY)


@dataclass(frozen=True, kw_only=True)
class Containment:
    """One candidate image."""

    outside: float
    """The share of its inputs outside of the update's span, geometric mean over layers; near zero if it took part."""
    p_value: float
    """How often an image that took no part looks as contained as this one, by the reference images."""
    layers: dict[str, float]
    """The share outside, layer by layer."""


def rows_of(module: nn.Conv2d | nn.Linear, inputs: Tensor) -> Tensor:
    """A layer's inputs as rows of the matrix that it multiplies, (n, positions, width)."""
    if isinstance(module, nn.Linear):
        return inputs.reshape(len(inputs), -1, inputs.shape[-1])
    patches = F.unfold(
        inputs,
        _pair(module.kernel_size),
        dilation=_pair(module.dilation),
        padding=_pair(module.padding),
        stride=_pair(module.stride),
    )
    return patches.transpose(1, 2)


def _pair(values: tuple[int, ...] | str) -> tuple[int, int]:
    return int(values[0]), int(values[1])


def contains(observation: Observation, images: Tensor, reference: Tensor) -> list[Containment]:
    """Whether an update contains each of some images.

    Args:
        observation: What the server saw of the client.
        images: Candidates, (M, C, H, W), pixels in [0, 1].
        reference: Images that took no part, of the same kind; a p-value cannot be less than one in their number.

    Examples:
        >>> from undelta import Scenario, disclose
        >>> scenario = Scenario(data="patches", num_samples=4, epochs=5, batches=2)
        >>> private, others = scenario.draw(seed=0), scenario.draw_held_out(seed=0, most=20)
        >>> observation = disclose(private, scenario, seed=0)
        >>> [round(found.p_value, 3) for found in contains(observation, private.images, others.images)]
        [0.048, 0.048, 0.048, 0.048]
    """
    model, found = _spanned(observation)
    if not found:
        raise MissingKnowledge(
            f"no layer of this network is wide enough for {observation.num_samples} images to leave directions free; "
            "the span test does not apply"
        )
    candidates, others = (_outside(observation, model, found, batch) for batch in (images, reference))
    scores, known = candidates.log().mean(1), others.log().mean(1)  # over layers
    return [
        Containment(
            outside=float(score.exp()),
            p_value=(1 + int((known <= score).sum())) / (1 + len(known)),
            layers={span.name: float(value) for span, value in zip(found, shares, strict=True)},
        )
        for score, shares in zip(scores, candidates, strict=True)
    ]


@dataclass(frozen=True, kw_only=True)
class InputSpans:
    """weight · mean log of the share of the layers' inputs outside of the spans that the update holds.

    Unlike an update, inputs change continuously with the images, and the share is smaller at the truth than anywhere
    else by orders of magnitude, so its logarithm keeps pulling until the end. But it says little of fine detail: use it
    with a prior on that, and when the large shapes are there. It is silent without a layer that leaves directions free,
    behind noise that leaves too few of them, and where Adam's steps have no such spans.
    """

    weight: float
    convolutions: bool = True
    """Whether their spans count, too, or only those of linear layers."""

    def __call__(self, observation: Observation, replay: Replay) -> Penalty | None:
        if observation.training.adaptive or self.weight == 0:
            return None
        model, found = _spanned(observation)
        layers, head = dict(_layers(model)), _head(model)
        counted = nn.Module if self.convolutions else nn.Linear
        found = [span for span in found if span.name != head and isinstance(layers[span.name], counted)]
        found = [span for span in found if span.survives(observation.num_samples)]
        if not found:
            return None
        by_name = {span.name: span for span in found}
        network = replay.network
        # Of every image, what the layers put out and what the spans are compared with; and autograd's share.
        needed = 2 * observation.dtype.itemsize * (network.activations(observation.image.shape) + _held(found))

        def mean_log(images: Tensor) -> Tensor:
            shares = [by_name[name].unexplained(rows) for name, rows in _rows(model, images, by_name)]
            return torch.stack(shares).clamp_min(SMALLEST).log().mean()

        def penalty(images: Tensor, labels: Tensor) -> Tensor:
            whole = observation.builder is not None and network.couples(images)  # somebody's layers may do anything
            size = len(images) if whole else max(1, network.memory // needed)
            return self.weight * mean_by_parts(mean_log, images, size)

        return penalty


def mean_by_parts(mean: Callable[[Tensor], Tensor], images: Tensor, size: int) -> Tensor:
    """A mean over images, taken part by part; the gradient of each part is computed at once, and its graph dropped."""
    parts = images.detach().split(size)
    if len(parts) == 1:
        return mean(images)
    values, gradients = list[Tensor](), list[Tensor]()
    for part in parts:
        share = len(part) / len(images)
        with torch.set_grad_enabled(images.requires_grad):
            value = mean(part.requires_grad_(images.requires_grad)) * share
        values.append(value.detach())
        if images.requires_grad:
            gradients.append(torch.autograd.grad(value, part)[0])
    total = torch.stack(values).sum()
    return total + ((images - images.detach()) * torch.cat(gradients)).sum() if gradients else total


@remembered
def _spanned(observation: Observation) -> tuple[nn.Module, list[Span]]:
    """The model halfway, and the spans of its layers' inputs, each of which takes the solution of an eigenproblem."""
    model = _model(observation).requires_grad_(False)
    return model, spans(observation, model, torch.zeros(1, *observation.image.shape))


def _held(found: Sequence[Span]) -> int:
    """How many values the rows of one image have, all layers together."""
    return sum(span.positions * (span.directions.shape[1] + span.directions.shape[0]) for span in found)


def spans(observation: Observation, model: nn.Module, images: Tensor) -> list[Span]:
    """Every layer whose inputs are few enough that its update leaves directions free.

    But the last one only if there is no other: all that trains before it moves its inputs, so that even the private
    images stick out, and an attack that pulls others further in than those fits noise (docs/strongest.md).
    """
    update = spanned_update(observation)
    with torch.no_grad():
        positions = {name: rows.shape[1] for name, rows in _rows(model, _inputs(observation, images[:1]))}
    found = []
    for name, _ in _layers(model):
        weight = f"{name}.weight" if name else "weight"
        if weight not in update or name not in positions:
            continue
        matrix = update[weight].flatten(1)  # (outputs, width)
        inputs = observation.num_samples * positions[name]
        if inputs > FILL * min(matrix.shape):
            continue
        rank = min(DRIFT * inputs, matrix.shape[0], int(FILL * matrix.shape[1]))
        directions, trust = leading(matrix, rank)
        found.append(Span(name=name, directions=directions, positions=positions[name], trust=trust))
    head = _head(model)
    return [span for span in found if span.name != head] or found


def _model(observation: Observation) -> nn.Module:
    """The network halfway along the update, where its inputs are closest to those of all steps together."""
    _, start, update = observed_update(observation)
    model = observation.model()
    halfway = along(start, update, 0.5)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name in halfway:
                value.copy_(halfway[name])
        # A client's BatchNorms in train mode saw its own batches' statistics, which its buffers reveal.
        for name, (mean, variance) in batch_norm_targets(observation, "auto").items():
            module = model.get_submodule(name)
            assert isinstance(module, _BatchNorm)  # noqa: S101
            if observation.training.norm_mode == "train" and module.running_mean is not None:
                module.running_mean.copy_(mean)
                module.running_var.copy_(variance)  # type: ignore[union-attr]
    return model.eval()


def _layers(model: nn.Module) -> Iterator[tuple[str, nn.Conv2d | nn.Linear]]:
    for name, module in model.named_modules():
        plain = isinstance(module, nn.Conv2d) and module.groups == 1 and isinstance(module.padding, tuple)
        if plain or isinstance(module, nn.Linear):
            yield name, module


def _head(model: nn.Module) -> str | None:
    """The last of several layers."""
    names = [name for name, _ in _layers(model)]
    return names[-1] if len(names) > 1 else None


def _inputs(observation: Observation, images: Tensor) -> Tensor:
    return observation.image.normalize(images.to(observation.device, observation.dtype))


def _rows(model: nn.Module, inputs: Tensor, names: Collection[str] | None = None) -> Iterator[tuple[str, Tensor]]:
    """What each layer, or each of those named, sees of the model's inputs, as rows; differentiable."""
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda _, values: seen.update({name: values[0]})

    with ExitStack() as stack:
        for name, module in _layers(model):
            stack.callback(module.register_forward_pre_hook(keep(name)).remove)
        model(inputs)
    for name, module in _layers(model):
        if name in seen and (names is None or name in names):
            yield name, rows_of(module, seen[name])


def _outside(observation: Observation, model: nn.Module, found: list[Span], images: Tensor) -> Tensor:
    """The share outside of each span, (n, layers)."""
    by_name = {span.name: span for span in found}
    parts = []
    for chunk in images.split(CHUNK):
        with torch.no_grad():
            seen = _rows(model, _inputs(observation, chunk), by_name)
            shares = {name: by_name[name].outside(rows) for name, rows in seen}
        parts.append(torch.stack([shares[span.name] for span in found], 1))
    return torch.cat(parts) if parts else torch.empty(0, len(found))
