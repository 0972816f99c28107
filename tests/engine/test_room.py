"""What a rollout keeps changes its time and memory, not its result; priors on BatchNorm inputs come back exactly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from undelta.attacker.attack import Run
from undelta.engine import Moments, Network, Room, Step, rollout
from undelta.engine.affine import Convolution, Dense
from undelta.engine.ops import Fixed, Rectifier
from undelta.engine.program import Pool
from undelta.engine.rollout import _Path
from undelta.errors import ConfigError
from undelta.models import build
from undelta.training import LocalTraining, NormMode
from undelta.updates import Update, parameters_of

CLASSES = 3
STEPS = 7
MODELS: dict[str, tuple[str, dict[str, object], NormMode]] = {
    "traced": ("cnn", {"width": 4, "hidden": 8}, "train"),
    "autograd": ("convnet", {"width": 4, "norm": "group"}, "train"),
    "traced, eval BatchNorm": ("convnet", {"width": 4}, "eval"),
    "traced, train BatchNorm": ("convnet", {"width": 4}, "train"),
}


def prepared(case: str) -> tuple[nn.Module, Network, Update, list[Step], Update]:
    name, arguments, norm_mode = MODELS[case]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build(name, arguments, shape=(2, 8, 8), classes=CLASSES).double()
        steps = [
            Step(
                torch.randn(5 - index % 3, 2, 8, 8, dtype=torch.float64),
                torch.rand(5 - index % 3, CLASSES, dtype=torch.float64),
                0.05 * (1 + index),
            )
            for index in range(STEPS)
        ]
        start = parameters_of(model)
        cotangent = {name: torch.randn_like(value) for name, value in start.items()}
    local = LocalTraining(epochs=1, batches=STEPS, learning_rate=0.1, norm_mode=norm_mode)
    return model, Network(model, local), start, steps, cotangent


def close(one: Tensor | None, other: Tensor | None) -> None:
    assert one is not None
    assert other is not None
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


ROOMS = [
    Room(chunk=5, tapes=1, points=1),
    Room(chunk=5, tapes=3, points=2),
    Room(chunk=5, tapes=1, points=3),
    Room(chunk=5, tapes=2, points=7),
    Room(chunk=5, tapes=99, points=99),
    Room(chunk=1, tapes=1, points=1),
    Room(chunk=2, tapes=4, points=3),
    Room(chunk=3, tapes=99, points=1),
]


@pytest.mark.parametrize("room", ROOMS, ids=str)
@pytest.mark.parametrize("case", MODELS)
def test_room_changes_no_result(case: str, room: Room) -> None:
    _, network, start, steps, cotangent = prepared(case)
    if network.couples(steps[0].images) and room.chunk < 5:
        pytest.skip("samples are coupled: no chunks")
    whole = rollout(network, start, steps, pull_start=True, room=Room(chunk=5, tapes=STEPS, points=1), prior=squares)
    other = rollout(network, start, steps, pull_start=True, room=room, prior=squares)
    for name in start:
        close(other.update[name], whole.update[name])
    close(other.penalty, whole.penalty)
    one, two = whole.pullback(cotangent), other.pullback(cotangent)
    for index in range(STEPS):
        close(two.images[index], one.images[index])
        close(two.labels[index], one.labels[index])
    assert one.start is not None
    assert two.start is not None
    for name in start:
        close(two.start[name], one.start[name])


def squares(moments: Mapping[str, Moments]) -> Tensor:
    """A prior whose derivatives by means and variances differ everywhere."""
    total = torch.zeros((), dtype=torch.float64)
    for number, (mean, variance) in enumerate(moments.values()):
        total = total + (1 + number) * (mean - 0.3).square().sum() + (variance - 0.7).norm()
    return total


@pytest.mark.parametrize("case", ["traced, eval BatchNorm", "traced, train BatchNorm"])
@pytest.mark.parametrize("traced", [True, False])
def test_a_prior_on_the_way_is_differentiated_exactly(case: str, traced: bool) -> None:
    """Against one graph of all steps with the penalty of each, which also moves the later points."""
    model, network, start, steps, cotangent = prepared(case)
    if not traced:
        network.known.program = None
    model.train(network.model.training)
    norms = {name: module for name, module in model.named_modules() if isinstance(module, _BatchNorm)}
    seen: dict[str, Tensor] = {}
    for name, module in norms.items():
        module.register_forward_pre_hook(lambda module, inputs, name=name: seen.update({name: inputs[0]}))
    leaves = {name: value.clone().requires_grad_() for name, value in start.items()}
    images = [step.images.clone().requires_grad_() for step in steps]
    point: Update = dict(leaves)
    penalties = []
    for inputs, step in zip(images, steps, strict=True):
        outputs = functional_call(model, point, (inputs,))
        loss = -(step.labels * outputs.log_softmax(1)).sum() / len(inputs)
        moments = {}
        for name, value in seen.items():
            axes = [0, 2, 3][: value.dim() - 1] if value.dim() > 2 else [0]
            moments[name] = Moments(value.mean(axes), value.var(axes, correction=1))
        penalties.append(squares(moments))
        gradients = torch.autograd.grad(loss, list(point.values()), create_graph=True)
        point = {
            name: value - step.learning_rate * gradient
            for (name, value), gradient in zip(point.items(), gradients, strict=True)
        }
    penalty = torch.stack(penalties).mean()
    product = torch.stack([((point[name] - leaves[name]) * cotangent[name]).sum() for name in leaves]).sum()
    expected = torch.autograd.grad(product + penalty, [*images, *leaves.values()])

    found = rollout(network, start, steps, pull_start=True, prior=squares)
    close(found.penalty, penalty.detach())
    pulled = found.pullback(cotangent)
    for one, other in zip(pulled.images, expected, strict=False):
        close(one, other)
    assert pulled.start is not None
    for name, other in zip(start, expected[STEPS:], strict=True):
        close(pulled.start[name], other)


def test_room_follows_the_memory_limit() -> None:
    _, network, _, steps, _ = prepared("traced")
    _, coupled, _, coupled_steps, _ = prepared("traced, train BatchNorm")
    network.memory = coupled.memory = 1
    assert Room.of(network, steps) == Room(chunk=1, tapes=1, points=2)
    assert Room.of(coupled, coupled_steps).chunk == 5
    network.memory = 2**40
    roomy = Room.of(network, steps)
    assert (roomy.chunk, roomy.points) == (5, 1)
    assert roomy.tapes > STEPS
    with pytest.raises(ConfigError, match="at least one byte"):
        Run(memory=0)


def test_tapes_at_rest_are_counted_by_what_they_hold() -> None:
    _, network, start, steps, _ = prepared("traced")
    images, labels = steps[0].images, steps[0].labels
    shape = (2, 8, 8)
    tape = network.tape(start, images, labels)
    assert isinstance(tape, Pool)
    resting, active = network.resting(shape), network.active(shape)
    assert tape.held / len(images) == pytest.approx(resting, rel=0.05)
    assert resting < active / 2
    network.known.program = None
    assert network.resting(shape) == network.active(shape)


def size_of(tensors: Iterable[Tensor]) -> int:
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


@pytest.mark.parametrize("case", ["traced", "traced, eval BatchNorm", "traced, train BatchNorm"])
def test_a_walk_keeps_no_more_than_its_limit(case: str) -> None:
    _, network, start, steps, _ = prepared(case)
    least = 3 * size_of(start.values()) + 5 * network.active((2, 8, 8))
    kept = []
    for factor in (1, 1.5, 2, 3, 6):
        network.memory = int(factor * least)
        path = _Path(network, start, steps, Room.of(network, steps), None)
        path.walk()
        tapes = [tape for tape in path._tapes.values() if isinstance(tape, Pool)]
        points = [*path._points.values(), *(tape.point for tape in tapes)]
        values = [value for tape in tapes for cell in tape.cells for value in cell.values]
        held = size_of([*(value for point in points for value in point.values()), *values]) - size_of(start.values())
        assert held <= network.memory
        kept.append(held)
    assert kept == sorted(kept)
    assert len(path._tapes) == STEPS  # with room for all
    assert kept[-1] > 2 * kept[0]


def test_a_limit_leaves_room_for_tapes_at_rest_beside_one_in_use() -> None:
    _, network, _, steps, _ = prepared("traced")
    network.memory = 8 * network.active((2, 8, 8))
    room = Room.of(network, steps)
    assert room.chunk < 5
    assert room.tapes > 1
    one = Room.of(network, steps[:1])
    assert one.chunk == 5  # a single step need not be cut


def test_what_functions_compute_counts_as_what_modules_do() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(2, 8, 3, padding=1), nn.Linear(512, CLASSES)

        def forward(self, images: Tensor) -> Tensor:
            hidden = self.first(images)
            for _ in range(8):
                hidden = hidden + torch.tanh(hidden)
            outputs: Tensor = self.second(hidden.flatten(1))
            return outputs

    network = Network(Functional(), LocalTraining(epochs=1, batches=1, learning_rate=0.1))
    assert network.active((2, 8, 8)) >= 2 * network.resting((2, 8, 8))


def test_a_tape_at_rest_keeps_no_adjoint_that_nothing_needs() -> None:
    _, network, start, steps, cotangent = prepared("traced")
    tape = network.tape(start, *steps[0][:2])
    assert isinstance(tape, Pool)
    nodes = zip(tape.program.nodes, tape.cells, strict=True)
    kept = {(type(node.operation), cell.delta is not None) for node, cell in nodes}
    assert kept == {(Convolution, True), (Dense, True), (Rectifier, False), (Fixed, False)}
    before = tape.held
    tape.pull(cotangent, parameters=True)
    assert tape.held > before  # tangents


def test_a_layer_that_couples_samples_is_found_out_whatever_it_is() -> None:
    class Centered(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images - images.mean(0, keepdim=True)

    local = LocalTraining(epochs=1, batches=1, learning_rate=0.1)
    images = torch.randn(4, 2, 8, 8)
    for layer, coupled in ((Centered(), True), (nn.GELU(), False)):
        model = nn.Sequential(layer, nn.Flatten(), nn.Linear(128, CLASSES))
        assert Network(model, local).couples(images) is coupled
    assert Network(build("convnet", {"width": 4}, shape=(2, 8, 8), classes=3), local).couples(images)
    still = LocalTraining(epochs=1, batches=1, learning_rate=0.1, norm_mode="eval")
    assert not Network(build("convnet", {"width": 4}, shape=(2, 8, 8), classes=3), still).couples(images)


def test_batch_norm_over_one_value_is_refused() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, CLASSES))
    network = Network(model, LocalTraining(epochs=1, batches=1, learning_rate=0.1))
    with pytest.raises(ConfigError, match="per channel"):
        network.tape(parameters_of(model), torch.ones(1, 2, 1, 1), torch.tensor([1]))
