"""The bound against closed forms, dense linear algebra and finite differences of real training."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from undelta.client.defenses import DpSgd
from undelta.client.disclose import disclose_with_secrets
from undelta.client.private import Private
from undelta.client.scenario import Scenario
from undelta.errors import ConfigError, DataError
from undelta.evaluation.determined import Whitened, ceilings, linear_reconstruction
from undelta.evaluation.image_prior import ImagePrior
from undelta.evaluation.jacobian import Jacobian, batches_of
from undelta.evaluation.sent import Sent, sent
from undelta.evaluation.spectrum import alone, spectrum
from undelta.observation import Observation
from undelta.updates import Update, difference

SMALL = Scenario(
    data="digits",
    num_samples=2,
    model_arguments={"width": 2, "hidden": 8},
    epochs=1,
    batches=2,
    learning_rate=0.05,
)
LINEAR = Scenario(
    data="digits",
    num_samples=1,
    model="mlp",
    model_arguments={"hidden": []},
    trained=("1.bias",),
    loss="l2",
    epochs=1,
    batches=1,
    learning_rate=0.5,
)


@cache
def small() -> tuple[Jacobian, Observation, Private]:
    return at_truth(SMALL)


def at_truth(scenario: Scenario) -> tuple[Jacobian, Observation, Private]:
    private = scenario.draw(0)
    observation, secrets = disclose_with_secrets(private, scenario, seed=0, dtype=torch.float64)
    sizes = scenario.training.sizes(scenario.num_samples)
    return Jacobian.at(private, observation, batches_of(secrets[0].orders, sizes)), observation, private


def prior_of(scenario: Scenario) -> ImagePrior:
    return ImagePrior.fit(scenario.draw_held_out(0, 200).images)


def noisy(update: Update, deviation: float) -> Sent:
    return Sent(deviation={name: torch.full_like(value, deviation) for name, value in update.items()}, source="a test")


def flat(update: Update) -> Tensor:
    return torch.cat([value.flatten() for value in update.values()])


@cache
def dense(jacobian: Jacobian) -> Tensor:
    """J itself, (P, n)."""
    size = math.prod(jacobian.shape)
    units = torch.eye(size, dtype=torch.float64).view(size, *jacobian.shape)
    return torch.stack([flat(jacobian.push(unit)) for unit in units], 1)


def test_products_are_the_slopes_of_the_client_s_own_training() -> None:
    jacobian, observation, private = small()
    way = torch.randn(private.images.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ends = []
    for step in (1e-6, -1e-6):
        moved = Private(images=private.images.double() + step * way, labels=private.labels)
        received = disclose_with_secrets(moved, SMALL, seed=0, dtype=torch.float64)[0].received
        ends.append(difference(received, observation.initial, jacobian.update))
    slope = (flat(ends[0]) - flat(ends[1])) / 2e-6
    assert float((flat(jacobian.push(way)) - slope).norm() / slope.norm()) < 1e-5


def test_the_replayed_update_is_the_one_that_was_sent() -> None:
    jacobian, observation, _ = small()
    expected = flat(difference(observation.received, observation.initial, jacobian.update))
    assert float((flat(jacobian.update) - expected).norm() / expected.norm()) < 1e-10


def test_the_pullback_is_the_transpose() -> None:
    jacobian, _, private = small()
    generator = torch.Generator().manual_seed(0)
    way = torch.randn(private.images.shape, generator=generator, dtype=torch.float64)
    back = {n: torch.randn(v.shape, generator=generator, dtype=torch.float64) for n, v in jacobian.update.items()}
    pushed, pulled = flat(jacobian.push(way)) @ flat(back), (jacobian.pull(back) * way).sum()
    assert float(pushed) == pytest.approx(float(pulled), rel=1e-10)


def test_augmented_images_are_refused() -> None:
    with pytest.raises(ConfigError, match="flip or crop"):
        at_truth(replace(SMALL, flip=True))


def test_a_linear_model_has_its_closed_form() -> None:
    """Of the bias alone: u = −2η (W(x − m)/s + b − y), linear in x, so that the bound is the posterior's variance."""
    jacobian, observation, private = at_truth(LINEAR)
    prior, sigma = prior_of(LINEAR), 0.1
    weight = observation.initial["1.weight"]
    slope = -2 * 0.5 * weight / observation.image.std[0]
    assert torch.allclose(dense(jacobian), slope, atol=1e-12)
    basis = prior.deviations(torch.eye(64, dtype=torch.float64).view(64, 1, 8, 8)).reshape(64, 64).T
    covariance = basis @ torch.diag(prior.variances.flatten()) @ basis.T
    gain = (
        covariance
        @ slope.T
        @ torch.linalg.inv(slope @ covariance @ slope.T + sigma**2 * torch.eye(10, dtype=torch.float64))
    )
    error = float((covariance - gain @ slope @ covariance).trace() / 64)
    whitened = Whitened(jacobian=jacobian, sent=noisy(jacobian.update, sigma), prior=prior)
    (found,) = ceilings(whitened, probes=30, products=30)
    assert found.gap < 0.1
    assert found.mean == pytest.approx(-10 * math.log10(error), abs=3 * found.error + found.gap)
    assert 0 < found.error < 0.2
    # The mean PSNR of errors that are distributed as the posterior's.
    root = torch.linalg.cholesky(covariance - gain @ slope @ covariance + 1e-12 * torch.eye(64, dtype=torch.float64))
    draws = root @ torch.randn(64, 4000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mean = float((-10 * torch.log10(draws.square().mean(0))).mean())
    assert mean - -10 * math.log10(error) > 0.2
    assert found.mean_typical - found.mean == pytest.approx(mean - -10 * math.log10(error), rel=0.3)
    # And the reconstruction is the posterior mean: x̂ = m + K (J (x − m) + n).
    pictures = linear_reconstruction(whitened, private.images, products=64, tight=0)
    noise = torch.randn(10, generator=_noise(), dtype=torch.float64)
    deviation = (private.images.double() - prior.mean).flatten()
    expected = prior.mean.flatten() + gain @ (slope @ deviation + sigma * noise)
    assert torch.allclose(pictures.flatten(), expected, atol=1e-9)
    # Without products it is the prior's mean: nothing of the truth goes in beside what was sent.
    early = linear_reconstruction(whitened, private.images, products=1)
    assert (early - prior.mean).norm() < (pictures - prior.mean).norm()


def _noise() -> torch.Generator:
    from undelta.seeding import stream

    return stream("evaluation", "bound", 0, "noise")


@pytest.mark.parametrize("sigma", [1e-2, 1e-3])
def test_the_estimate_is_that_of_dense_linear_algebra(sigma: float) -> None:
    jacobian, _, _ = small()
    prior = prior_of(SMALL)
    whitened = Whitened(jacobian=jacobian, sent=noisy(jacobian.update, 1.0), prior=prior)
    units = torch.eye(64, dtype=torch.float64).view(64, 1, 8, 8)
    basis = torch.block_diag(*[prior.deviations(units * prior.variances.sqrt()).reshape(64, 64).T] * 2)
    slopes = dense(jacobian) @ basis
    matrix = slopes.T @ slopes
    unit = torch.eye(128, dtype=torch.float64)[70]
    assert torch.allclose(whitened(unit), matrix[70], atol=1e-12 * float(matrix.max()))
    inverse = torch.linalg.inv(matrix / sigma**2 + torch.eye(128, dtype=torch.float64))
    expected = -10 * torch.log10((prior.variances.flatten().repeat(2) * inverse.diagonal()).view(2, -1).mean(1))
    (found,) = ceilings(whitened, scales=[sigma], probes=4, products=40)
    assert found.gap < 0.2
    for value, truth in zip(found.psnr, expected.tolist(), strict=True):
        assert value == pytest.approx(truth, abs=4 * found.error + found.gap)


def test_few_products_err_on_the_safe_side_and_more_close_the_gap() -> None:
    jacobian, _, _ = small()
    whitened = Whitened(jacobian=jacobian, sent=noisy(jacobian.update, 1e-4), prior=prior_of(SMALL))
    few, more = (ceilings(whitened, products=count)[0] for count in (5, 30))
    assert few.mean > more.mean + 0.1
    assert few.gap > 2 * more.gap
    assert few.mean_settled < more.mean


def test_an_update_that_says_nothing_leaves_the_prior() -> None:
    jacobian, observation, private = small()
    prior = prior_of(SMALL)
    nothing = sent(jacobian.update, observation, replace(SMALL, defenses=({"defense": "pure_noise"},)).protection)
    whitened = Whitened(jacobian=jacobian, sent=nothing, prior=prior)
    (found,) = ceilings(whitened)
    pictures = linear_reconstruction(whitened, private.images)
    assert torch.equal(pictures, prior.mean.expand_as(pictures))
    assert found.psnr == pytest.approx([-10 * math.log10(prior.variance)] * 2)
    assert found.products == 4
    assert found.error < 1e-12  # signs in the prior's basis have no variance there


def test_the_linear_reconstruction_goes_from_the_truth_to_the_prior_s_mean() -> None:
    jacobian, _, private = at_truth(replace(LINEAR, model_arguments={"hidden": [8]}, trained=()))
    prior = prior_of(SMALL)
    errors = []
    for sigma in (1e-9, 1e-2, 1e6):
        whitened = Whitened(jacobian=jacobian, sent=noisy(jacobian.update, sigma), prior=prior)
        pictures = linear_reconstruction(whitened, private.images, products=20)
        errors.append(float((pictures - private.images).square().mean()))
    assert errors[0] < 1e-4
    assert errors[0] < errors[1] < errors[2]
    assert torch.allclose(pictures, prior.mean.expand_as(pictures), atol=1e-6)


def test_singular_values_are_those_of_the_dense_matrix() -> None:
    jacobian, _, _ = small()
    values = torch.linalg.svdvals(dense(jacobian))
    found = spectrum(jacobian, products=30)
    assert found.leading == pytest.approx(values[:5].tolist(), rel=1e-5)
    assert found.smallest >= float(values[-1])
    assert found.directions == 128
    blocks = dense(jacobian).view(-1, 2, 64).square().sum((0, 2)).div(64).sqrt()
    assert found.sensitivity == pytest.approx(blocks.tolist(), rel=0.3)
    for threshold in (values[10], values[60]):
        count = int((values > threshold).sum())
        assert found.above(float(threshold)) == pytest.approx(count, rel=0.35)
    assert found.fixed(float(values[60]) * 0.1) == found.above(float(values[60]))


def test_singular_values_of_one_image_alone_are_those_of_its_columns() -> None:
    jacobian, _, _ = small()
    columns = dense(jacobian).view(-1, 2, 64)[:, 1]
    values = torch.linalg.svdvals(columns)
    found = alone(jacobian, 1, products=30)
    assert found.leading == pytest.approx(values[:5].tolist(), rel=1e-4)
    assert all(bound >= float(value) for bound, value in zip(found.trailing, values.flip(0), strict=False))
    assert float((columns @ found.free.flatten()).norm()) == pytest.approx(found.trailing[0], rel=1e-6)
    assert float((columns @ found.fixed.flatten()).norm()) == pytest.approx(found.leading[0], rel=1e-6)
    assert float(found.free.norm()) == pytest.approx(1)
    whole = alone(jacobian, 1, products=64)
    assert whole.trailing[0] == pytest.approx(float(values[-1]), abs=1e-6 * float(values[0]))


def test_a_prior_s_basis_is_orthonormal_and_its_fit_finds_the_variances() -> None:
    generator = torch.Generator().manual_seed(0)
    colors = torch.linalg.qr(torch.randn(3, 3, generator=generator, dtype=torch.float64)).Q
    variances = torch.tensor([0.04, 0.01, 0.001], dtype=torch.float64).view(3, 1, 1).expand(3, 6, 6).clone()
    variances[:, 3:] *= 0.1  # not a function of the radius alone: the fit averages over rings
    drawn = ImagePrior(mean=torch.full((3, 1, 1), 0.5, dtype=torch.float64), colors=colors, variances=variances)
    noise = torch.randn(400, 3, 6, 6, generator=generator, dtype=torch.float64)
    images = drawn.mean + drawn.deviations(variances.sqrt() * noise)
    assert torch.allclose(drawn.whitened(images), noise)
    fitted = ImagePrior.fit(images)
    assert torch.allclose(fitted.mean, drawn.mean, atol=0.05)
    assert fitted.variance == pytest.approx(float(variances.mean()), rel=0.05)
    assert torch.allclose(fitted.variances[:, 0, 0].flip(0), variances[:, 0, 0], rtol=0.3)
    assert float(fitted.surprise(images).mean()) == pytest.approx(1, abs=0.3)
    with pytest.raises(DataError, match="expected at least 16 public images"):
        ImagePrior.fit(images[:3])


def test_a_prior_of_each_image_has_that_image_s_contrast() -> None:
    prior = prior_of(SMALL)
    images = SMALL.draw(0).images
    flat_images = 0.1 * (images - images.mean((1, 2, 3), keepdim=True)) + images.mean((1, 2, 3), keepdim=True)
    own = prior.of_each(torch.cat([images[:1], flat_images[:1]]))
    assert own.variances.shape == (2, 1, 8, 8)
    assert float(own.variances[1, 0, 4:].mean()) < 0.5 * float(own.variances[0, 0, 4:].mean())


def defended(*defenses: dict[str, Any]) -> tuple[Sent, Update, Scenario]:
    scenario = replace(SMALL, defenses=defenses)
    jacobian, observation, _ = small()
    return sent(jacobian.update, observation, scenario.protection), jacobian.update, scenario


def test_noise_and_quantization_have_their_deviations() -> None:
    found, update, _ = defended({"defense": "noise", "scale": 1e-3})
    assert all(torch.allclose(value, torch.tensor(1e-3).double()) for value in found.deviation.values())
    assert "0.001 on every entry" in found.source
    found, update, _ = defended({"defense": "quantization", "bits": 4})
    for name, value in update.items():
        expected = float(value.max() - value.min()) / 15 / math.sqrt(12)
        assert float(found.deviation[name].mean()) == pytest.approx(expected, rel=1e-6)
    with pytest.raises(ConfigError, match="expected quantization to 2 bits or more"):
        defended({"defense": "quantization", "bits": 1})


@pytest.mark.parametrize("sampling", ["shuffled", "poisson"])
def test_dp_sgd_s_noise_is_what_its_steps_add(sampling: str) -> None:
    """The covariance of updates over draws of the noise: the same on every entry, and none between entries."""
    scenario = replace(SMALL, model="mlp", model_arguments={"hidden": [4]}, num_samples=4, epochs=3, learning_rate=0.02)
    table = {"defense": "dp_sgd", "norm": 0.5, "sampling": sampling}
    loud, quiet = (replace(scenario, defenses=({**table, "noise_multiplier": z},)) for z in (2.0, 0.0))
    private, draws, count = scenario.draw(0), list[Tensor](), 40
    (noise,), (silence,) = (cast("list[DpSgd]", one.protection) for one in (loud, quiet))
    observation, _ = disclose_with_secrets(private, loud, seed=0, dtype=torch.float64)
    inputs = observation.image.normalize(private.images.double())
    for draw in range(count):
        ends = []
        for defense in (noise, silence):  # the same mini-batches
            model = observation.model()
            defense.accounted_walk(model, inputs, private.labels, scenario.training, seed=("draw", draw))
            ends.append(torch.cat([value.detach().flatten() for value in model.parameters()]))
        draws.append(ends[0] - ends[1])
    seen = torch.stack(draws)
    update = {name: value - observation.initial[name] for name, value in observation.received.items()}
    found = sent(update, observation, loud.protection)
    assert "DP-SGD's noise" in found.source
    entries = seen.shape[1]
    assert float(seen.square().mean().sqrt()) == pytest.approx(found.size, rel=4 / math.sqrt(2 * count * entries))
    assert float((seen.square().mean(0) / found.size**2).std()) == pytest.approx(math.sqrt(2 / count), rel=0.25)
    between = seen.T @ seen / count / found.size**2
    off = between[~torch.eye(entries, dtype=torch.bool)]
    assert float(off.square().mean().sqrt()) == pytest.approx(1 / math.sqrt(count), rel=0.1)


def test_clipping_is_differentiated_and_pruned_entries_are_not_seen() -> None:
    norm = 1e-3
    found, update, scenario = defended({"defense": "clipping", "norm": norm})
    generator = torch.Generator().manual_seed(0)
    way = {name: torch.randn(value.shape, generator=generator).double() for name, value in update.items()}
    (clipping,) = scenario.protection
    ends = []
    for step in (1e-7, -1e-7):
        moved = {name: value + step * way[name] for name, value in update.items()}
        ends.append(flat(clipping.protect(moved, generator)))  # type: ignore[union-attr]
    slope = (ends[0] - ends[1]) / 2e-7
    mapped = {name: value * found.deviation[name] for name, value in found.whitened(way).items()}
    assert torch.allclose(flat(mapped), slope, rtol=1e-4, atol=1e-6 * float(slope.abs().max()))
    other = {name: value.flip(0) for name, value in way.items()}
    forth, back = flat(found.whitened(way)) @ flat(other), flat(found.transposed(other)) @ flat(way)
    assert float(forth) == pytest.approx(float(back))
    found, update, _ = defended({"defense": "pruning", "ratio": 0.9})
    seen = flat(found.whitened(way)) != 0
    assert int(seen.sum()) == pytest.approx(0.1 * len(seen), abs=1)
    assert flat(update).abs()[seen].min() >= flat(update).abs()[~seen].max()


def test_without_defenses_what_is_left_is_the_rounding_of_floats() -> None:
    jacobian, _, private = small()
    observation, _ = disclose_with_secrets(private, SMALL, seed=0)
    found = sent(jacobian.update, observation, ())
    assert "float32" in found.source
    exact = flat(jacobian.update)
    seen = flat(difference(observation.received, observation.initial, jacobian.update))
    assert float((seen - exact).square().mean().sqrt()) == pytest.approx(found.size, rel=1.0)
    uniform = found.alone("given")
    assert uniform.size == 1


def test_defenses_that_are_no_noise_are_refused() -> None:
    with pytest.raises(ConfigError, match="got mixup"):
        defended({"defense": "mixup", "alpha": 1.0})
