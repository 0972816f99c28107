"""Traced networks: which modules are traced, and that their sweeps equal autograd twice over, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from undelta.engine import Network
from undelta.engine.moments import Slope
from undelta.engine.network import AutogradTape, Tape
from undelta.engine.program import Pool
from undelta.models import build
from undelta.training import LOSSES, LocalTraining, LossName, NormMode
from undelta.updates import parameters_of

CLASSES = 3
SHAPE = (3, 12, 12)


class Views(nn.Module):
    """As people write: functions and views instead of modules, a sum in place, a frozen layer, an idle one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.second = nn.Conv2d(4, 4, 3, padding=1, groups=2, dilation=1)
        self.frozen = nn.Conv2d(4, 4, 1).requires_grad_(False)
        self.idle = nn.Linear(2, 2)
        self.head = nn.Linear(4 * 6 * 6, CLASSES, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        features = F.relu(self.first(images))
        branch = self.second(torch.tanh(features))
        branch += features
        features = self.frozen(branch).sigmoid()
        logits: Tensor = self.head(features.flatten(1)[:, :144])
        return logits


class Plain(Views):
    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.AvgPool2d(2)

    def forward(self, images: Tensor) -> Tensor:
        features = F.relu(self.first(images))
        branch = self.second(torch.tanh(features))
        branch += features
        features = self.pool(self.frozen(branch).sigmoid())
        logits: Tensor = self.head(features.view(features.size(0), -1))
        return logits


def tied() -> nn.Module:
    """One convolution used twice."""
    twice = nn.Conv2d(3, 3, 3, padding=1)
    return nn.Sequential(twice, nn.ReLU(), twice, nn.Tanh(), nn.Flatten(), nn.Linear(432, CLASSES))


def pools() -> nn.Module:
    return nn.Sequential(
        nn.AvgPool2d(3, stride=2, padding=1),  # before any parameter
        nn.Conv2d(3, 4, (3, 1), stride=(2, 1), padding=(1, 0), bias=False),
        nn.BatchNorm2d(4, affine=False),
        nn.MaxPool2d(3, stride=1, padding=1),
        nn.AvgPool2d(2),
        nn.AdaptiveAvgPool2d((1, 2)),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(8, 5),
        nn.BatchNorm1d(5),
        nn.Identity(),
        nn.Linear(5, CLASSES),
    )


def tiny_maps() -> nn.Module:
    """Convolutions whose outputs have a few pixels only, in one row as well."""
    return nn.Sequential(
        nn.AvgPool2d(4),
        nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=(1, 0)),  # 2 x 2
        nn.Tanh(),
        nn.Conv2d(4, 6, 2, padding=1, dilation=2),
        nn.Tanh(),
        nn.Conv2d(6, 4, (2, 1), bias=False),  # 1 x 2
        nn.Flatten(),
        nn.Linear(8, CLASSES),
    )


def zeroed() -> nn.Module:
    """A ResNet whose residual branches start at zero, as many are initialized: γ = 0 divides nothing."""
    model = build("resnet8", {"width": 4}, shape=SHAPE, classes=CLASSES)
    for name, parameter in model.named_parameters():
        if name.endswith("bn2.weight"):
            nn.init.zeros_(parameter)
    return model


def built(name: str, **arguments: object) -> nn.Module:
    return build(name, arguments, shape=SHAPE, classes=CLASSES)


def biased() -> nn.Module:
    """Only biases are trained, as some fine-tune."""
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Conv2d(4, 4, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(256, CLASSES)
    )
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))
    return model


CASES = {
    "biases alone": biased,
    "mlp": lambda: built("mlp"),
    "LeNet": lambda: built("lenet", width=3),
    "CNN": lambda: built("cnn", width=4, hidden=8),
    "CNN, max pooling, BatchNorm": lambda: built("cnn", width=4, hidden=8, pool="max", norm="batch"),
    "convnet": lambda: built("convnet", width=4),
    "ResNet-18": lambda: built("resnet18", width=4),
    "ResNet-18, large stem": lambda: built("resnet18", width=4, stem="imagenet"),
    "ResNet-50": lambda: built("resnet50", width=2),
    "VGG": lambda: build("vgg11", {"width": 2, "hidden": 32}, shape=(3, 32, 32), classes=CLASSES),
    "functions and views": Plain,
    "tied": tied,
    "pools": pools,
    "tiny maps": tiny_maps,
    "zeroed": zeroed,
}


def prepared(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    for key, buffer in model.named_buffers():
        if buffer.is_floating_point():
            low = 0.5 if key.endswith("var") else -0.1
            buffer.copy_(low + 0.2 * torch.rand(buffer.shape, generator=generator))
    return model.double()


def network_of(model: nn.Module, loss: LossName = "cross_entropy", norm_mode: NormMode = "train") -> Network:
    return Network(model, LocalTraining(epochs=1, batches=1, learning_rate=0.1, loss=loss, norm_mode=norm_mode))


def batch(model: nn.Module, *, soft: bool = True) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    side = 32 if type(model).__name__ == "VGG" else SHAPE[-1]
    images = torch.randn(4, 3, side, side, generator=generator, dtype=torch.float64)
    logits = torch.randn(4, CLASSES, generator=generator, dtype=torch.float64)
    # Soft labels need not sum to one.
    return images, 1.3 * logits.softmax(1) if soft else logits.argmax(1)


def close(found: Tensor | None, expected: Tensor | None) -> None:
    assert found is not None
    assert expected is not None
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12 + 1e-11 * float(expected.abs().max()))


def check_equal(swept: Tape, reference: AutogradTape, *, norms: bool = True) -> None:
    generator = torch.Generator().manual_seed(3)
    assert list(swept.gradient) == list(reference.gradient)
    for name, value in reference.gradient.items():
        close(swept.gradient[name], value)
    mu = {
        name: torch.randn(value.shape, generator=generator, dtype=torch.float64)
        for name, value in reference.gradient.items()
    }
    moments = reference.moments()
    assert set(swept.moments()) == set(moments)
    for name, (count, mean, squares) in moments.items():
        found = swept.moments()[name]
        assert found.size == count
        close(found.mean, mean)
        close(found.squares, squares)
    sources = {
        name: Slope(*torch.randn(2, len(part.mean), generator=generator, dtype=torch.float64))
        for name, part in moments.items()
    }
    one, other = (tape.pull(mu, parameters=True, sources=sources) for tape in (swept, reference))
    close(one.images, other.images)
    if other.labels is None:
        assert one.labels is None
    else:
        close(one.labels, other.labels)
    assert one.parameters is not None
    assert other.parameters is not None
    assert list(one.parameters) == list(other.parameters)
    for name, value in other.parameters.items():
        close(one.parameters[name], value)


@pytest.mark.parametrize("norm_mode", ["train", "eval"])
@pytest.mark.parametrize("case", CASES)
def test_the_sweeps_equal_double_backward(case: str, norm_mode: NormMode) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = prepared(CASES[case]())
    network, point = network_of(model, norm_mode=norm_mode), parameters_of(model)
    images, labels = batch(model)
    tape = network.tape(point, images, labels, share=0.7)
    assert isinstance(tape, Pool), "not traced"
    check_equal(tape, AutogradTape(network, point, images, labels, 0.7))


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
def test_both_losses_and_both_kinds_of_labels(loss: LossName, soft: bool) -> None:
    model = prepared(built("cnn", width=4, hidden=8))
    network, point = network_of(model, loss), parameters_of(model)
    images, labels = batch(model, soft=soft)
    tape = network.tape(point, images, labels)
    assert isinstance(tape, Pool)
    check_equal(tape, AutogradTape(network, point, images, labels, 1.0))


def test_a_tape_for_its_pull_alone_takes_no_gradient() -> None:
    model = prepared(built("cnn", width=4, hidden=8))
    network, point = network_of(model), parameters_of(model)
    images, labels = batch(model)
    whole, lean = (network.tape(point, images, labels, gradient=wanted) for wanted in (True, False))
    assert lean.gradient == {}
    mu = {name: torch.ones_like(value) for name, value in point.items()}
    close(lean.pull(mu, parameters=False).images, whole.pull(mu, parameters=False).images)
    assert network.tape(point, images, labels).pull(mu, parameters=False).parameters is None


class Branching(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1)[:, :CLASSES] if images.mean() > 0 else images.flatten(1)[:, 1 : CLASSES + 1]


class Hidden(nn.Conv2d):
    """A convolution that is not one."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return 2 * super().forward(input)


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(3, CLASSES, 12), nn.Flatten())
    model[0].register_forward_hook(lambda module, inputs, output: 2 * output)
    return model


def reflecting() -> nn.Module:
    conv = nn.Conv2d(3, 2, 3, padding=1, padding_mode="reflect")
    return nn.Sequential(conv, nn.Flatten(), nn.Linear(288, CLASSES))


@pytest.mark.parametrize(
    "make",
    [
        lambda: built("vit", width=8, depth=1, heads=2),
        lambda: built("resnet8", width=4, norm="group"),
        lambda: nn.Sequential(nn.Conv2d(3, CLASSES, 12), nn.GELU(), nn.Flatten()),
        lambda: nn.Sequential(Hidden(3, CLASSES, 12), nn.Flatten()),
        hooked,
        reflecting,
        Branching,
        Views,
    ],
    ids=["ViT", "GroupNorm", "GELU", "subclass", "hooks", "padding", "branching", "indexing"],
)
def test_anything_else_is_left_to_autograd(make: object) -> None:
    model = make().double()  # type: ignore[operator]
    network, point = network_of(model), parameters_of(model)
    images, labels = batch(model)
    if point:
        assert isinstance(network.tape(point, images, labels), AutogradTape)
    assert network.known.program is None


class Rearranging(nn.Module):
    """A view that looks like flattening in a trace, but is not."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(216, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        wide = images.view(-1, 216)
        logits: Tensor = self.head(wide)
        return logits


class Overwriting(nn.Module):
    """ReLU in place: the shortcut, too, is rectified, which no trace shows."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.relu = nn.Conv2d(3, 3, 3, padding=1), nn.ReLU(inplace=True)
        self.head = nn.Linear(432, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        features = self.conv(images)
        logits: Tensor = self.head((self.relu(features) + features).flatten(1))
        return logits


class Broadcasting(nn.Module):
    """A sum of different shapes: outputs agree with a trace's, adjoints do not."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool = nn.Conv2d(3, 3, 3, padding=1), nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(432, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        features = self.conv(images)
        logits: Tensor = self.head((features + self.pool(features)).flatten(1))
        return logits


class Detached(Broadcasting):
    """A backbone without gradients, which a trace forgets."""

    def forward(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            features = self.conv(images)
        logits: Tensor = self.head(features.flatten(1))
        return logits


class Named(Broadcasting):
    """Arguments by name."""

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(input=self.conv(images).flatten(1))
        return logits


class Aside(Broadcasting):
    """A BatchNorm on a branch that leads nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)

    def forward(self, images: Tensor) -> Tensor:
        features = self.conv(images)
        self.norm(features)
        logits: Tensor = self.head(features.flatten(1))
        return logits


@pytest.mark.parametrize("make", [Broadcasting, Detached, Named, Aside])
def test_what_a_trace_cannot_tell_is_left_to_autograd(make: type[nn.Module]) -> None:
    model = make().double()
    network, point = network_of(model), parameters_of(model)
    images, labels = batch(model)
    assert isinstance(network.tape(point, images, labels), AutogradTape)


def test_a_tape_may_be_pulled_twice() -> None:
    model = prepared(built("convnet", width=4))
    network, point = network_of(model), parameters_of(model)
    images, labels = batch(model)
    one, other = ({name: torch.full_like(value, size) for name, value in point.items()} for size in (1.0, 0.3))
    tape = network.tape(point, images, labels)
    tape.pull(one, parameters=True)
    close(
        tape.pull(other, parameters=True).images,
        network.tape(point, images, labels).pull(other, parameters=True).images,
    )


def test_a_trace_that_is_given_up_decides_no_more_whether_samples_are_coupled() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Flatten(), nn.Linear(576, CLASSES)).double()
    model.register_forward_hook(lambda module, inputs, output: output - output.mean(0, keepdim=True))
    images, _ = batch(model)
    assert network_of(model).couples(images)


def test_a_trace_that_does_something_else_than_the_module_is_given_up() -> None:
    model = Overwriting().double()
    network, point = network_of(model), parameters_of(model)
    assert network.known.program is not None
    images, labels = batch(model)
    tape = network.tape(point, images, labels)
    assert isinstance(tape, AutogradTape)
    rearranging = Rearranging().double()
    network = network_of(rearranging)
    assert isinstance(network.tape(parameters_of(rearranging), images, torch.zeros(8).long()), AutogradTape)
    assert network.known.program is None
