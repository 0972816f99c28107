"""Canvases: images of several epochs, and images that a generator makes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from undelta.assignment import match
from undelta.attacker.attacks import gias
from undelta.attacker.canvas import GeneratorWeights, Latents, Pixels
from undelta.attacker.combine import Phases
from undelta.attacker.method import GradientMatching
from undelta.attacker.optimizers import Adam
from undelta.attacker.replays import OneStep
from undelta.client.datasets import open_dataset
from undelta.client.disclose import disclose
from undelta.client.private import Private
from undelta.client.scenario import Scenario
from undelta.errors import ConfigError
from undelta.evaluation.metrics import psnr
from undelta.observation import Observation

DIM = 12
PUBLIC = 1200  # the digits before this index are the attacker's, the others the clients'


def randomness(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_permuted_copies_of_a_set_collapse_to_that_set(observation: Observation) -> None:
    three = replace(observation, training=replace(observation.training, epochs=3))
    images = torch.randn(5, 1, 8, 8, generator=randomness())
    labels = torch.tensor([4, 2, 2, 7, 2])
    within = torch.tensor([0, 2, 4, 3, 1])  # a cycle among the images of one class
    back = torch.tensor([0, 4, 1, 3, 2])
    copies = torch.cat([images, images[within], images[back]])
    found, classes = Pixels(per_epoch=True).collapse(copies, torch.cat([labels] * 3), three)
    torch.testing.assert_close(found, images)
    assert torch.equal(classes, labels)


def test_copies_that_differ_are_averaged_after_matching(observation: Observation) -> None:
    images = torch.arange(5.0).view(5, 1, 1, 1).expand(5, 1, 8, 8)
    labels = torch.zeros(5, dtype=torch.int64)
    found, _ = Pixels(per_epoch=True).collapse(torch.cat([images, images.flip(0) + 0.5]), labels.repeat(2), observation)
    torch.testing.assert_close(found, images + 0.25)


def test_one_set_of_images_per_epoch_has_its_sizes(observation: Observation) -> None:
    canvas = Pixels(per_epoch=True)
    variables = canvas.start(observation, randomness())
    assert canvas.images(variables, observation).shape == (10, 1, 8, 8)
    assert canvas.labels(torch.arange(5), observation).tolist() == [0, 1, 2, 3, 4] * 2
    carried = canvas.carry(torch.ones(5, 1, 8, 8), {}, observation)
    assert carried["images"].shape == (10, 1, 8, 8)
    single = Pixels().start(observation, randomness())["images"]
    assert single.shape == (5, 1, 8, 8)


class Decoder(nn.Module):
    """A small generator of digits, with dropout to tell whether it is asked for samples or for training."""

    def __init__(self, side: int = 8) -> None:
        super().__init__()
        self.side = side
        self.body = nn.Sequential(nn.Linear(DIM, 64), nn.ReLU(), nn.Dropout(0.0), nn.Linear(64, side * side))

    def forward(self, latents: Tensor) -> Tensor:
        pixels: Tensor = self.body(latents).sigmoid().view(-1, 1, self.side, self.side)
        return pixels


@pytest.fixture(scope="module")
def generator() -> Decoder:
    """Trained on public digits to decode their principal components."""
    dataset = open_dataset("digits")
    images = dataset.draw(range(PUBLIC), 8)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        decoder = Decoder()
    flat = images.flatten(1) - images.flatten(1).mean(0)
    latents = flat @ torch.linalg.svd(flat, full_matrices=False).Vh[:DIM].T
    latents = latents / latents.std(0)
    optimizer = torch.optim.Adam(decoder.parameters(), lr=0.01)
    for _ in range(300):
        batch = torch.randint(PUBLIC, (128,), generator=randomness(len(optimizer.state)))
        optimizer.zero_grad()
        (decoder(latents[batch]) - images[batch]).square().mean().backward()
        optimizer.step()
    optimizer.zero_grad()
    return decoder.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def others() -> tuple[Observation, Private]:
    """A client with digits that the generator has not seen."""
    dataset = open_dataset("digits")
    indices = [1300, 1400, 1501]
    private = Private(images=dataset.draw(indices, 8), labels=dataset.labels[indices])
    scenario = Scenario(
        data="digits", num_samples=3, model="cnn", model_arguments={"width": 8, "hidden": 32}, epochs=1, batches=1
    )
    return disclose(private, scenario), private


def quality(images: Tensor, labels: Tensor, private: Private) -> float:
    order = match(images, private.images, labels, private.labels)
    return float(psnr(images[order], private.images).mean())


def test_a_generator_helps_to_reconstruct_digits_it_has_not_seen(
    generator: Decoder, others: tuple[Observation, Private]
) -> None:
    observation, private = others
    before = {name: value.clone() for name, value in generator.state_dict().items()}
    result = gias(generator, dim=DIM, steps=400, weight_steps=100, latent_rate=0.1)(observation)
    noise = torch.rand(private.images.shape, generator=randomness())
    start = GradientMatching(replay=OneStep(), canvas=Latents(generator=generator, dim=DIM), steps=1)(observation)
    found = quality(result.images, result.labels, private)
    assert found > quality(noise, result.labels, private) + 5
    assert found > quality(start.images, start.labels, private) + 3
    assert found > 14
    assert result.status == "completed"
    for name, value in generator.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(parameter.grad is None for parameter in generator.parameters())


def test_the_weights_phase_continues_the_latents_and_lowers_the_mismatch(
    generator: Decoder, others: tuple[Observation, Private]
) -> None:
    observation, _ = others
    attack = gias(generator, dim=DIM, steps=60, weight_steps=30)
    latents, both = Phases(phases=attack.phases[:1])(observation), attack(observation)
    assert latents.mismatch < latents.history[0].mismatch
    assert both.mismatch < latents.mismatch
    resumed = [moment for moment in both.history if moment.iteration == 60]
    assert resumed[-1].mismatch == pytest.approx(latents.mismatch, rel=1e-3)
    assert torch.equal(both.variables["_latents"], latents.variables["latents"])
    moved = both.variables["generator/body.0.weight"]
    assert moved.shape == (3, *generator.state_dict()["body.0.weight"].shape)
    assert not torch.equal(moved[0], moved[1])


def test_a_generator_is_asked_in_evaluation_mode_and_keeps_its_own(others: tuple[Observation, Private]) -> None:
    trained = Decoder().train()
    result = gias(trained, dim=DIM, steps=2, weight_steps=2)(others[0])
    assert torch.isfinite(result.images).all()
    assert trained.training


def test_a_generator_serves_observations_in_float64(generator: Decoder) -> None:
    scenario = Scenario(data="digits", num_samples=2, model="lenet", model_arguments={"width": 3}, epochs=1, batches=1)
    observation = disclose(scenario.draw(0), scenario, dtype=torch.float64)
    assert gias(generator, dim=DIM, steps=2, weight_steps=2)(observation).status == "completed"


def test_a_generator_of_other_images_is_an_error(observation: Observation) -> None:
    with pytest.raises(ConfigError, match=r"expected a generator of images \(1, 8, 8\), got \(1, 7, 7\)"):
        gias(Decoder(side=7), dim=DIM, steps=2, weight_steps=2)(observation)


def test_a_generators_phase_cannot_follow_free_pixels(observation: Observation) -> None:
    pixels = GradientMatching(replay=OneStep(), steps=1)
    weights = GradientMatching(
        replay=OneStep(), canvas=GeneratorWeights(generator=Decoder(), dim=DIM), optimizer=Adam(), steps=1
    )
    with pytest.raises(ConfigError, match="no latents"):
        Phases(phases=(pixels, weights))(observation)
    assert weights(observation).status == "completed", "on its own it starts from random latents"
