"""The rollout's pullback against plain autograd in float64, whatever is kept, cut or computed again."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from undelta.engine import Network, Pulled, Step, rollout
from undelta.models import build
from undelta.training import LocalTraining, LossName, NormMode
from undelta.updates import Update, parameters_of

CLASSES = 3
SAMPLES = 7  # with B=4: mini-batches of 2, 2, 2 and 1
RATE = 0.05


def training(
    epochs: int = 1, batches: int = 1, *, loss: LossName = "cross_entropy", norm_mode: NormMode = "train"
) -> LocalTraining:
    return LocalTraining(epochs=epochs, batches=batches, learning_rate=RATE, loss=loss, norm_mode=norm_mode)


MODELS: dict[str, tuple[str, dict[str, object], NormMode]] = {
    "cnn": ("cnn", {"width": 4, "hidden": 8}, "train"),
    "cnn with max pooling": ("cnn", {"width": 4, "hidden": 8, "pool": "max"}, "train"),
    "BatchNorm in train mode": ("convnet", {"width": 4, "norm": "batch"}, "train"),
    "BatchNorm in eval mode": ("convnet", {"width": 4, "norm": "batch"}, "eval"),
    "GroupNorm": ("convnet", {"width": 4, "norm": "group"}, "train"),
    "ResNet": ("resnet8", {"width": 4}, "train"),
    "ViT": ("vit", {"width": 8, "depth": 2, "heads": 2}, "train"),
}


def small_model(name: str, arguments: dict[str, object]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build(name, arguments, shape=(2, 8, 8), classes=CLASSES).double()
    generator = torch.Generator().manual_seed(1)
    for key, buffer in model.named_buffers():  # running statistics that differ from the layers' first ones
        if buffer.is_floating_point():
            low = 0.1 if key.endswith("var") else -0.1
            buffer.copy_(low + 0.2 * torch.rand(buffer.shape, generator=generator, dtype=torch.float64))
    return model


def random_steps(local: LocalTraining, *, soft: bool = True, seed: int = 2) -> list[Step]:
    """E epochs of B mini-batches of reshuffled random images."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(SAMPLES, 2, 8, 8, generator=generator, dtype=torch.float64)
    logits = torch.randn(SAMPLES, CLASSES, generator=generator, dtype=torch.float64)
    labels = logits.softmax(1) if soft else logits.argmax(1)
    steps: list[Step] = []
    for _ in range(local.epochs):
        order = torch.randperm(SAMPLES, generator=generator)
        for batch in order.split(list(local.sizes(SAMPLES))):
            steps.append(Step(images[batch], labels[batch], local.learning_rate * (1 + len(steps) / 10)))
    return steps


def random_like(update: Update, seed: int = 3) -> Update:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(value.shape, generator=generator, dtype=torch.float64) for name, value in update.items()}


def unrolled(
    model: nn.Module, local: LocalTraining, start: Update, steps: Sequence[Step], cotangent: Update
) -> tuple[Update, Pulled]:
    """The same by one big graph: every step differentiable, one backward pass through all of them."""
    model = copy.deepcopy(model).train(local.norm_mode == "train")
    leaves = {name: value.clone().requires_grad_() for name, value in start.items()}
    images = [step.images.clone().requires_grad_() for step in steps]
    labels = [step.labels.clone().requires_grad_() for step in steps]
    point: Update = dict(leaves)
    with sdpa_kernel(SDPBackend.MATH):
        for inputs, targets, step in zip(images, labels, steps, strict=True):
            outputs = functional_call(model, point, (inputs,))
            if local.loss == "l2":
                loss = (outputs - targets).pow(2).sum() / len(targets)
            else:
                loss = -(targets * outputs.log_softmax(1)).sum() / len(targets)
            gradients = torch.autograd.grad(loss, list(point.values()), create_graph=True)
            point = {
                name: value - step.learning_rate * gradient
                for (name, value), gradient in zip(point.items(), gradients, strict=True)
            }
    update = {name: point[name] - leaves[name] for name in leaves}
    product = torch.stack([(update[name] * cotangent[name]).sum() for name in update]).sum()
    pulled = list(torch.autograd.grad(product, [*images, *labels, *leaves.values()]))
    count = len(steps)
    return (
        {name: value.detach() for name, value in update.items()},
        Pulled(
            pulled[:count],
            list[Tensor | None](pulled[count : 2 * count]),
            dict(zip(leaves, pulled[2 * count :], strict=True)),
        ),
    )


def flat(tensors: Sequence[Tensor | None]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors if tensor is not None])


def relative_error(found: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> float:
    a, b = flat(found), flat(expected)
    assert b.norm() > 0, "the test would prove nothing"
    return float((a - b).norm() / b.norm())


def check_against_autograd(model: nn.Module, local: LocalTraining) -> None:
    start, steps = parameters_of(model), random_steps(local)
    cotangent = random_like(start)
    expected_update, expected = unrolled(model, local, start, steps, cotangent)
    update, _, pullback = rollout(Network(model, local), start, steps, pull_start=True)
    pulled = pullback(cotangent)
    assert relative_error(list(update.values()), list(expected_update.values())) < 1e-9
    assert len(pulled.images) == len(pulled.labels) == len(steps)
    assert relative_error(pulled.images, expected.images) < 1e-9
    assert relative_error(pulled.labels, expected.labels) < 1e-9
    assert pulled.start is not None
    assert expected.start is not None
    assert list(pulled.start) == list(start)
    assert relative_error(list(pulled.start.values()), list(expected.start.values())) < 1e-9


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("batches", [1, 4])
@pytest.mark.parametrize("case", MODELS)
def test_the_pullback_equals_autograd_through_the_unrolled_training(case: str, batches: int, epochs: int) -> None:
    name, arguments, norm_mode = MODELS[case]
    check_against_autograd(small_model(name, arguments), training(epochs, batches, norm_mode=norm_mode))


def test_the_pullback_equals_autograd_for_the_l2_loss() -> None:
    check_against_autograd(small_model("lenet", {"width": 3}), training(2, 2, loss="l2"))


def test_class_labels_have_no_cotangent_and_the_start_only_where_asked() -> None:
    model, local = small_model("lenet", {"width": 3}), training(2, 2)
    start = parameters_of(model)
    _, _, pullback = rollout(Network(model, local), start, random_steps(local, soft=False))
    pulled = pullback(random_like(start))
    assert pulled.labels == [None] * 4
    assert pulled.start is None


def test_asking_for_the_start_does_not_change_the_other_cotangents() -> None:
    model, local = small_model("lenet", {"width": 3}), training(2, 2)
    start, steps = parameters_of(model), random_steps(local)
    cotangent = random_like(start)
    with_start = rollout(Network(model, local), start, steps, pull_start=True).pullback(cotangent)
    without = rollout(Network(model, local), start, steps).pullback(cotangent)
    assert torch.equal(flat(with_start.images), flat(without.images))


def test_the_pullback_may_be_called_twice() -> None:
    model, local = small_model("convnet", {"width": 4}), training(2, 2)
    start = parameters_of(model)
    _, _, pullback = rollout(Network(model, local), start, random_steps(local), pull_start=True)
    cotangent = random_like(start)
    first, second = pullback(cotangent), pullback(cotangent)
    assert torch.equal(flat(first.images), flat(second.images))
    assert torch.equal(flat(first.labels), flat(second.labels))
    assert first.start is not None
    assert second.start is not None
    assert torch.equal(flat(list(first.start.values())), flat(list(second.start.values())))


def test_the_pullback_is_linear_and_leaves_its_argument_alone() -> None:
    model, local = small_model("lenet", {"width": 3}), training(2, 2)
    start = parameters_of(model)
    _, _, pullback = rollout(Network(model, local), start, random_steps(local), pull_start=True)
    cotangent = random_like(start)
    before = {name: value.clone() for name, value in cotangent.items()}
    once, thrice = pullback(cotangent), pullback({name: 3 * value for name, value in cotangent.items()})
    torch.testing.assert_close(flat(thrice.images), 3 * flat(once.images))
    assert all(torch.equal(cotangent[name], before[name]) for name in before)


@pytest.mark.parametrize("norm_mode", ["train", "eval"])
def test_a_replay_changes_neither_the_model_nor_the_start_nor_the_data(norm_mode: NormMode) -> None:
    model, local = small_model("convnet", {"width": 4}), training(2, 2, norm_mode=norm_mode)
    network, start, steps = Network(model, local), parameters_of(model), random_steps(local)
    kept = [
        {name: value.clone() for name, value in state.items()}
        for state in (model.state_dict(), network.model.state_dict())
    ]
    images = [step.images.clone() for step in steps]
    update, _, pullback = rollout(network, start, steps)
    pullback(random_like(update))
    for state, before in zip((model.state_dict(), network.model.state_dict()), kept, strict=True):
        assert all(torch.equal(state[name], before[name]) for name in before)
    assert all(torch.equal(step.images, before) for step, before in zip(steps, images, strict=True))
    assert not any(step.images.requires_grad for step in steps)


@pytest.mark.parametrize(
    "dropping",
    [
        nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(128, CLASSES)),
        nn.Sequential(nn.Dropout2d(0.5), nn.Flatten(), nn.AlphaDropout(0.3), nn.Linear(128, CLASSES)),
    ],
    ids=["dropout", "other dropouts"],
)
def test_a_model_with_dropout_is_replayed_deterministically(dropping: nn.Module) -> None:
    local = training(2, 2)
    network, start = Network(dropping.double(), local), parameters_of(dropping)
    first, _, _ = rollout(network, start, random_steps(local))
    second, _, _ = rollout(network, start, random_steps(local))
    assert torch.equal(flat(list(first.values())), flat(list(second.values())))


class _AttentionWithDropout(nn.Module):
    """Attention drops out by an attribute of its own, not by a dropout module."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        tokens = images.flatten(1, 2)
        logits: Tensor = self.head(self.attention(tokens, tokens, tokens, need_weights=False)[0].mean(1))
        return logits


def test_attention_with_dropout_is_replayed_deterministically() -> None:
    local = training(2, 2)
    model = _AttentionWithDropout().double()
    network, start = Network(model, local), parameters_of(model)
    first, _, _ = rollout(network, start, random_steps(local))
    second, _, _ = rollout(network, start, random_steps(local))
    assert torch.equal(flat(list(first.values())), flat(list(second.values())))


def test_a_parameter_that_the_loss_ignores_stays_where_it_is() -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(128, CLASSES), nn.Linear(2, 2)

        def forward(self, images: Tensor) -> Tensor:
            logits: Tensor = self.used(images.flatten(1))
            return logits

    local = training(2, 2)
    model = Idle().double()
    update, _, pullback = rollout(Network(model, local), parameters_of(model), random_steps(local), pull_start=True)
    assert float(update["idle.weight"].abs().max()) == 0
    assert float(update["used.weight"].abs().max()) > 0
    assert torch.isfinite(flat(pullback(random_like(update)).images)).all()


def test_the_update_keeps_digits_that_a_difference_of_float32_parameters_loses() -> None:
    model, local = small_model("lenet", {"width": 3}), training()
    steps = [step._replace(learning_rate=1e-7) for step in random_steps(local)]
    exact, _, _ = rollout(Network(model, local), parameters_of(model), steps)
    single = copy.deepcopy(model).float()
    start = parameters_of(single)
    small = [Step(step.images.float(), step.labels.float(), step.learning_rate) for step in steps]
    update, _, _ = rollout(Network(single, local), start, small)
    cancelled = [(start[name] + update[name] - start[name]).double() for name in start]
    expected = list(exact.values())
    assert relative_error([value.double() for value in update.values()], expected) < 1e-5
    assert relative_error(cancelled, expected) > 1e-3
