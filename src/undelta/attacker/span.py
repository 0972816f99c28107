"""The span test: does an update contain given images? It needs neither labels nor learning rate nor epochs.

The update of a layer's weight matrix is a sum of outer products, ΔW = Σ δ ⊗ a, over all inputs a that the layer saw, so
they span its row space. Where they are fewer than the matrix is wide and high, most directions are free, and the inputs
that a client's own image causes lie in the span, while those of any other image stick out. So a server that *guesses*
an image can confirm the guess with one forward pass (docs/threat-model.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from undelta.attacker.priors import batch_norm_targets
from undelta.attacker.replays import observed_update
from undelta.errors import MissingKnowledge
from undelta.observation import Observation
from undelta.updates import along

FILL = 0.5  # of a matrix's smaller side; more inputs than that span too much of it to tell anything
CHUNK = 32  # images of a forward pass
TINY = 1e-12


@dataclass(frozen=True, kw_only=True)
class Span:
    """The directions that one layer's update holds, (rank, inputs of the layer)."""

    name: str
    directions: Tensor

    def outside(self, rows: Tensor) -> Tensor:
        """The share of each image's inputs (n, positions, width), by energy, that the span does not hold, (n,)."""
        held = (rows @ self.directions.T).square().sum((1, 2))
        whole = rows.square().sum((1, 2)).clamp_min(TINY)
        return (1 - held / whole).clamp_min(TINY)


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
    model = _model(observation)
    found = spans(observation, model, images)
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


def spans(observation: Observation, model: nn.Module, images: Tensor) -> list[Span]:
    """Every layer whose inputs are few enough that its update leaves directions free."""
    _, _, update = observed_update(observation)
    positions = {name: rows.shape[1] for name, rows in _rows(observation, model, images[:1])}
    found = []
    for name, _ in _layers(model):
        weight = f"{name}.weight" if name else "weight"
        if weight not in update or name not in positions:
            continue
        matrix = update[weight].flatten(1)  # (outputs, width)
        rank = observation.num_samples * positions[name]
        if rank > FILL * min(matrix.shape):
            continue
        directions = torch.linalg.svd(matrix, full_matrices=False).Vh[:rank]
        found.append(Span(name=name, directions=directions))
    return found


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


def _rows(observation: Observation, model: nn.Module, images: Tensor) -> Iterator[tuple[str, Tensor]]:
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda _, inputs: seen.update({name: inputs[0].detach()})

    with ExitStack() as stack, torch.no_grad():
        for name, module in _layers(model):
            stack.callback(module.register_forward_pre_hook(keep(name)).remove)
        model(observation.image.normalize(images.to(observation.device, observation.dtype)))
    for name, module in _layers(model):
        if name in seen:
            yield name, rows_of(module, seen[name])


def _outside(observation: Observation, model: nn.Module, found: list[Span], images: Tensor) -> Tensor:
    """The share outside of each span, (n, layers)."""
    by_name = {span.name: span for span in found}
    parts = []
    for chunk in images.split(CHUNK):
        rows_by_name = _rows(observation, model, chunk)
        shares = {name: by_name[name].outside(rows) for name, rows in rows_by_name if name in by_name}
        parts.append(torch.stack([shares[span.name] for span in found], 1))
    return torch.cat(parts) if parts else torch.empty(0, len(found))
