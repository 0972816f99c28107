"""What one client's update determines of the images behind it: the bound at each noise, pictures, singular values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from undelta.client.datasets import open_dataset, origin_of, pick
from undelta.client.datasets.folders import in_channels
from undelta.client.datasets.public import public_photographs
from undelta.client.defenses import DpSgd
from undelta.client.disclose import disclose_with_secrets
from undelta.client.local import LocalRun
from undelta.client.private import Private
from undelta.client.scenario import Scenario
from undelta.engine import MEMORY
from undelta.engine.devices import device_of
from undelta.errors import ConfigError, DataError
from undelta.evaluation.determined import Whitened, ceilings, linear_reconstruction
from undelta.evaluation.image_prior import FEWEST, ImagePrior
from undelta.evaluation.jacobian import Jacobian, batches_of
from undelta.evaluation.metrics import psnr
from undelta.evaluation.read_off import ReadOff, read_off
from undelta.evaluation.sent import sent
from undelta.evaluation.spectrum import Alone, Spectrum, alone, spectrum
from undelta.observation import Observation
from undelta.seeding import stream
from undelta.studies.products import Kept
from undelta.trials.bound_file import Bounded
from undelta.trials.record import describe_scenario
from undelta.updates import difference, inner

PUBLIC = 200  # images that a prior is fitted to, at most
DIFFERENT = 1e-2  # of an update: a replay that is further off does not describe the training

Counted = Callable[[int], None]
"""Is told how many products are done."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked of an update."""

    sigmas: tuple[float, ...] = ()
    """Deviations of Gaussian noise on every entry of the update, in place of the scenario's own noise."""
    public: str | None = None
    """A source of images for the prior; by default, images of the scenario's source that no client has, or public
    photographs where those are too few."""
    own_spectra: bool = True
    """Whether attackers are granted the power spectrum of each private image, without which the bound is a mean over
    images, smooth and busy ones alike."""
    products: int = 200
    """How many products with JᵀJ it may cost."""
    directions: int = 0
    """How many more, for each image, its own singular values may cost."""

    def __post_init__(self) -> None:
        if self.products < 20:
            raise ConfigError(f"expected products >= 20, got products={self.products}")
        if self.directions and self.directions < 2:
            raise ConfigError(f"expected directions >= 2, or 0 for none, got directions={self.directions}")
        if any(not 0 < sigma < math.inf for sigma in self.sigmas):
            raise ConfigError(f"expected sigmas > 0, got {', '.join(map(str, self.sigmas))}")

    def most(self, images: int) -> int:
        """Products for a client of so many images, at most."""
        return self.products + images * self.directions


@dataclass(frozen=True, kw_only=True)
class Determined:
    """The answer for one client."""

    images: Tensor = field(repr=False)
    """The private ones, (N, C, H, W)."""
    observation: Observation = field(repr=False)
    rows: tuple[Bounded, ...]
    pictures: tuple[Tensor, ...] = field(repr=False)
    """The best linear reconstruction at each row's noise."""
    each: tuple[Alone, ...] = field(repr=False)
    """Of every image alone, if that was asked for."""
    spectrum: dict[str, Any]
    inputs: ReadOff
    noise: str
    prior: str
    prior_psnr: float
    notes: tuple[str, ...]
    doubts: tuple[str, ...]


def determine(
    scenario: Scenario,
    seed: int,
    question: Question,
    *,
    path: Path | None = None,
    device: str = "auto",
    memory: int = MEMORY,
    count: Counted = lambda _: None,
) -> Determined:
    """Train the client of a scenario, and see what its update determines.

    Args:
        scenario: One client, one observed round.
        seed: Of the client.
        question: What to find out.
        path: A file that a stopped call resumes from; whoever gives it removes it when the answer is written.
        device: Where to compute.
        memory: Bytes that may be kept to save time.
        count: Called after every product.
    """
    if scenario.aggregate > 1 or scenario.observed_rounds > 1:
        raise ConfigError("expected one client and one observed round, got a scenario with several")
    private = scenario.draw(seed)
    observation, secrets = disclose_with_secrets(private, scenario, seed=seed)
    about = {"scenario": describe_scenario(scenario), "seed": seed, **asdict(question)}
    prior, words = prior_of(scenario, seed, question.public)
    if question.own_spectra:
        prior, words = prior.of_each(private.images), f"{words}; each image's own power spectrum is granted"
    observation = observation.to(device_of(device))
    batches = batches_of(_orders(scenario, secrets[0], seed), scenario.training.sizes(len(private)))
    jacobian = Jacobian.at(private, observation, batches, memory=memory)
    channel = sent(jacobian.update, observation, scenario.protection)
    channel = channel.alone("noise as given, on every entry") if question.sigmas else channel
    case = _Case(
        whitened=Whitened(jacobian=jacobian, sent=channel, prior=prior.to(observation.device)),
        images=private.images,
        seed=seed,
        products=question.products,
        keep=Kept(path, {**about, "sigmas": list(question.sigmas)}, count, device_of(device)),
    )
    rows, pictures = zip(*case.rows(question.sigmas), strict=True)
    each = case.each(question.directions) if question.directions else ()
    return Determined(
        images=private.images,
        observation=observation,
        rows=rows,
        pictures=pictures,
        each=each,
        spectrum=case.spectrum | ({"images": [one.values for one in each]} if each else {}),
        inputs=read_off(observation, private),
        noise=channel.source,
        prior=words,
        prior_psnr=-10 * math.log10(prior.variance),
        notes=channel.notes,
        doubts=tuple(_doubts(scenario, private, seed, observation)),
    )


@dataclass(frozen=True, kw_only=True)
class _Case:
    """One seed's client: six tenths of its products are for the bound, two for pictures, two for singular values."""

    whitened: Whitened
    images: Tensor
    seed: int
    products: int
    keep: Kept

    def rows(self, sigmas: Sequence[float]) -> Iterator[tuple[Bounded, Tensor]]:
        """The bound and the linear reconstruction for each size of the noise, or for the client's own."""
        jacobian, scales = self.whitened.jacobian, tuple(sigmas) or (1.0,)
        entries = sum(value.numel() for value in jacobian.update.values())
        probes = max(2, 1 + -(-4 // len(self.images)))
        each = max(2, self.products * 6 // (10 * probes * len(scales)))
        found = ceilings(self.whitened, scales=scales, probes=probes, products=each, seed=self.seed, keep=self.keep)
        for scale, ceiling in zip(scales, found, strict=True):
            picture = linear_reconstruction(
                self.whitened,
                self.images,
                scale=scale,
                products=max(2, self.products // 5 // len(scales)),
                seed=self.seed,
                keep=self.keep,
            ).cpu()  # not clamped: the range of pixels is more than a Gaussian prior knows
            sigma = scale * self.whitened.sent.size
            row = Bounded(
                seed=self.seed,
                sigma=sigma,
                update_rms=math.sqrt(float(inner(jacobian.update, jacobian.update)) / entries),
                least_mse=ceiling.mean,
                bound=ceiling.mean_typical,
                error=ceiling.error,
                gap=ceiling.gap,
                images=ceiling.typical,
                linear=tuple(psnr(picture, self.images.double()).tolist()),
                fixed=self._spectrum.fixed(sigma) / self._spectrum.directions if sigma else 0.0,  # nothing is sent
                products=ceiling.products,
            )
            yield row, picture

    @cached_property
    def _spectrum(self) -> Spectrum:
        return spectrum(self.whitened.jacobian, products=self.products // 10, seed=self.seed, keep=self.keep)

    def each(self, products: int) -> tuple[Alone, ...]:
        """The singular values of every image alone."""
        return tuple(
            alone(self.whitened.jacobian, image, products=products, seed=self.seed, keep=self.keep)
            for image in range(len(self.images))
        )

    @property
    def spectrum(self) -> dict[str, Any]:
        """The singular values as plain values, with the number of directions above each power of ten."""
        found = self._spectrum
        below = [found.leading[0] * 10.0**-power for power in range(1, 13)]
        return {
            "seed": self.seed,
            "leading": found.leading,
            "smallest_at_most": found.smallest,
            "sensitivity": found.sensitivity,
            "directions": found.directions,
            "entries": found.entries,
            "above": [{"singular_value": value, "directions": found.above(value)} for value in below],
            "surprise": self.whitened.prior.surprise(self.images.to(self.whitened.root.device)).tolist(),
        }


def prior_of(scenario: Scenario, seed: int, public: str | None) -> tuple[ImagePrior, str]:
    """A prior of images that the client does not have, and in words, what it was fitted to."""
    channels, side, _ = scenario.image_spec().shape
    if public is None or origin_of(public) == origin_of(scenario.data):
        images = scenario.draw_held_out(seed, PUBLIC).images
        words = f"{len(images)} images of {scenario.data} that no client has"
        if len(images) < FEWEST:
            if public is not None:
                raise DataError(f"{public} holds the private images and {len(images)} others; give another --public")
            images, words = public_photographs(side), "70 crops of two public photographs"
    else:
        source = open_dataset(public)
        chosen = pick(source, min(PUBLIC, len(source)), stream("evaluation", "bound", "public"))
        images, words = source.draw(chosen, side), f"{len(chosen)} images of {public}"
    return ImagePrior.fit(torch.stack([in_channels(image, channels) for image in images])), words


def _orders(scenario: Scenario, hidden: LocalRun, seed: int) -> Sequence[Tensor]:
    """The client's own; where mini-batches were drawn by chance, shuffled ones in their place."""
    if _drawn_by_chance(scenario):
        generator = stream("evaluation", "bound", seed, "orders")
        return [torch.randperm(scenario.num_samples, generator=generator) for _ in range(scenario.epochs)]
    return hidden.orders


def _drawn_by_chance(scenario: Scenario) -> bool:
    return any(isinstance(one, DpSgd) and one.sampling == "poisson" for one in scenario.protection)


def _doubts(scenario: Scenario, private: Private, seed: int, observation: Observation) -> Iterator[str]:
    """Where the bound's assumptions do not hold."""
    norms = any(isinstance(module, _BatchNorm) for module in observation.model().modules())
    buffers = any(name.endswith("running_mean") for name in observation.received)
    if norms and buffers and scenario.norm_mode == "train":
        yield "BatchNorm's running statistics are sent, too, and are not counted: attackers know more than this"
    if _drawn_by_chance(scenario):
        yield "mini-batches were drawn by chance, and shuffled ones of equal size stand for them here"
    if (off := _off(scenario, private, seed, observation)) > DIFFERENT:
        yield f"the replayed training is off by {off:.0%} of the update (dropout?): do not trust this"


def _off(scenario: Scenario, private: Private, seed: int, observation: Observation) -> float:
    """How far a replay misses the update of the same client without defenses, which change what is sent."""
    seen, secrets = disclose_with_secrets(private, replace(scenario, defenses=()), seed=seed)
    seen = seen.to(observation.device)
    batches = batches_of(secrets[0].orders, scenario.training.sizes(len(private)))
    replayed = Jacobian.at(private, seen, batches).update
    sent_plainly = difference(seen.received, seen.initial, replayed)
    missed = {name: value - sent_plainly[name].double() for name, value in replayed.items()}
    return float((inner(missed, missed) / inner(replayed, replayed)).sqrt())
