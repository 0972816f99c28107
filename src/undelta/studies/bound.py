"""`undelta bound`: what an update determines of the images behind it, whatever the attack."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
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
from undelta.evaluation.determined import ASSUMPTIONS, Ceiling, Whitened, ceilings, linear_reconstruction
from undelta.evaluation.image_prior import FEWEST, ImagePrior
from undelta.evaluation.jacobian import Jacobian, batches_of
from undelta.evaluation.metrics import psnr
from undelta.evaluation.sent import Sent, sent
from undelta.evaluation.spectrum import Spectrum, spectrum
from undelta.files import make_folder, to_json, write_bytes
from undelta.observation import Observation
from undelta.observation.file import digest_of
from undelta.seeding import stream
from undelta.studies.products import Kept
from undelta.trials.config import load_scenario
from undelta.trials.directory import RunDirectory
from undelta.trials.pictures import write_sheet
from undelta.trials.record import describe_scenario, versions
from undelta.updates import difference, inner

PUBLIC = 200  # images that a prior is fitted to, at most
DIFFERENT = 1e-2  # of an update: a replay that is further off does not describe the training
RESULTS = "bound.json"


@dataclass(frozen=True, kw_only=True)
class Reached:
    """The strongest attack on the same update, among those that were run."""

    attack: str
    psnr: float


@dataclass(frozen=True, kw_only=True)
class Bounded:
    """What one seed's update determines."""

    seed: int
    noise: str
    """Where the noise is from."""
    sigmas: tuple[float, ...]
    """Its deviation on an entry of the update, root mean square, for each ceiling."""
    update_rms: float
    """That of the update's own entries."""
    prior: str
    """What the prior was fitted to."""
    prior_psnr: float
    """Of the prior's mean: what is known without any update."""
    surprise: tuple[float, ...]
    """How far each image is from the prior: about one where it fits, less for smooth images."""
    ceilings: tuple[Ceiling, ...]
    linear: tuple[tuple[float, ...], ...]
    """PSNR of each image's linear reconstruction, for each ceiling."""
    spectrum: Spectrum
    reached: Reached | None
    notes: tuple[str, ...]

    def headroom(self, ceiling: Ceiling) -> float | None:
        """What attackers have not reached yet, in dB."""
        return None if self.reached is None else ceiling.mean_typical - self.reached.psnr


Told = Callable[[int, int], None]
"""Is told how many products are done, and of how many at most."""


def bound_job(
    scenario_path: Path,
    *,
    seeds: Sequence[int] = (0,),
    sigmas: Sequence[float] = (),
    public: str | None = None,
    own_spectra: bool = True,
    products: int = 200,
    initial: str | None = None,
    run: Path | None = None,
    out: Path | None = None,
    device: str = "auto",
    memory: int = MEMORY,
    told: Told | None = None,
) -> list[Bounded]:
    """The bound for each seed.

    Args:
        scenario_path: A scenario as TOML.
        seeds: A run of the client for each.
        sigmas: Deviations of Gaussian noise on every entry of the update, in place of the scenario's own noise.
        public: A source of images for the prior; by default, images of the scenario's source that no client has, or
            public photographs where those are too few.
        own_spectra: Whether attackers are granted the power spectrum of each private image, without which the bound is
            a mean over images, smooth and busy ones alike.
        products: How many products with JᵀJ a seed may cost.
        initial: Weights to start from, instead of those the scenario names.
        run: A directory with attacks on the same updates, to compare with.
        out: A directory for the numbers, the pictures and what a stopped command resumes from.
        device: Where to compute.
        memory: Bytes that may be kept to save time.
        told: Is told of progress.
    """
    if products < 20:
        raise ConfigError(f"expected products >= 20, got {products=}")
    if any(not 0 < sigma < math.inf for sigma in sigmas):
        raise ConfigError(f"expected sigmas > 0, got {', '.join(map(str, sigmas))}")
    scenario = load_scenario(scenario_path)
    scenario = scenario if initial is None else replace(scenario, initial=initial)
    if scenario.aggregate > 1 or scenario.observed_rounds > 1:
        raise ConfigError("expected one client and one observed round, got a scenario with several")
    if out is not None:
        make_folder(out)
    found = []
    for index, seed in enumerate(seeds):
        private = scenario.draw(seed)
        observation, secrets = disclose_with_secrets(private, scenario, seed=seed)
        about = {
            "scenario": describe_scenario(scenario),
            "seed": seed,
            "sigmas": list(sigmas),
            "public": public,
            "own_spectra": own_spectra,
            "products": products,
        }
        path = None if out is None else out / f"products-seed-{seed}.safetensors"
        keep = Kept(path, about, partial(_tell, told, index, len(seeds), products), device_of(device))
        prior, words = prior_of(scenario, seed, public)
        prior = prior.of_each(private.images) if own_spectra else prior
        words = f"{words}; each image's own power spectrum is granted" if own_spectra else words
        observation = observation.to(device_of(device))
        batches = batches_of(_orders(scenario, secrets[0], seed), scenario.training.sizes(len(private)))
        jacobian = Jacobian.at(private, observation, batches, memory=memory)
        case = _Case(jacobian, private, observation, prior.to(observation.device), words, keep)
        channel = sent(jacobian.update, observation, scenario.protection)
        notes = (*channel.notes, *_notes(scenario, jacobian, observation))
        bounded = case.bounded(channel, sigmas, products, seed, notes, _reached(run, observation))
        if out is not None:
            write_sheet(out / f"bound-seed-{seed}.png", case.rows)
            keep.drop()
        found.append(bounded)
    if out is not None:
        report = {"about": about, "versions": versions(), "assumptions": ASSUMPTIONS}
        write_bytes(out / RESULTS, to_json({**report, "seeds": [described(one) for one in found]}))
    return found


def _tell(told: Told | None, index: int, seeds: int, products: int, done: int) -> None:
    if told:
        told(index * products + min(done, products), seeds * products)


def described(bounded: Bounded) -> dict[str, Any]:
    """The bound as plain values, for JSON."""
    values = asdict(replace(bounded, spectrum=None))  # type: ignore[arg-type]
    found = bounded.spectrum
    top = found.leading[0]
    decades = [top * 10.0**-power for power in range(1, 13)]
    values["spectrum"] = {
        "leading": found.leading,
        "smallest_at_most": found.smallest,
        "sensitivity": found.sensitivity,
        "directions": found.directions,
        "entries": found.entries,
        "above": [{"singular_value": value, "directions": found.above(value)} for value in decades if top > 0],
        "fixed": [found.fixed(sigma) for sigma in bounded.sigmas],
    }
    return values


class _Case:
    """One seed's client, ready for its products."""

    def __init__(
        self, jacobian: Jacobian, private: Private, observation: Observation, prior: ImagePrior, words: str, keep: Kept
    ) -> None:
        self.jacobian, self.images, self.observation = jacobian, private.images, observation
        self.prior, self.words, self.keep = prior, words, keep
        self.rows: list[tuple[str, Tensor]] = [("private originals", private.images)]

    def bounded(
        self,
        channel: Sent,
        sigmas: Sequence[float],
        products: int,
        seed: int,
        notes: tuple[str, ...],
        reached: Reached | None,
    ) -> Bounded:
        """All that is found: six tenths of the products for the bound, two for pictures, two for singular values."""
        count = len(self.images)
        if sigmas:
            channel = channel.alone("noise as given, on every entry")
        scales = tuple(sigmas) or (1.0,)
        whitened = Whitened(jacobian=self.jacobian, sent=channel, prior=self.prior)
        probes = max(2, 1 + -(-4 // count))
        each = max(2, products * 6 // (10 * probes * len(scales)))
        found = ceilings(whitened, scales=scales, probes=probes, products=each, seed=seed, keep=self.keep)
        linear = []
        for scale, ceiling in zip(scales, found, strict=True):
            each = max(2, products // 5 // len(scales))
            pictures = linear_reconstruction(
                whitened, self.images, scale=scale, products=each, seed=seed, keep=self.keep
            ).cpu()  # not clamped: the range of pixels is more than a Gaussian prior knows
            linear.append(tuple(psnr(pictures, self.images.double()).tolist()))
            words = f"deviation {scale:.3g}" if sigmas else channel.source
            caption = f"the best linear reconstruction, {words}: bound {ceiling.mean_typical:.1f} dB"
            self.rows.append((caption, pictures))
        size = inner(self.jacobian.update, self.jacobian.update)
        entries = sum(value.numel() for value in self.jacobian.update.values())
        return Bounded(
            seed=seed,
            noise=channel.source,
            sigmas=tuple(sigmas) or (channel.size,),
            update_rms=math.sqrt(float(size) / entries),
            prior=self.words,
            prior_psnr=-10 * math.log10(self.prior.variance),
            surprise=tuple(self.prior.surprise(self.images.to(self.observation.device)).tolist()),
            ceilings=found,
            linear=tuple(linear),
            spectrum=spectrum(self.jacobian, products=products // 10, seed=seed, keep=self.keep),
            reached=reached,
            notes=notes,
        )


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
    if any(isinstance(one, DpSgd) and one.sampling == "poisson" for one in scenario.protection):
        generator = stream("evaluation", "bound", seed, "orders")
        return [torch.randperm(scenario.num_samples, generator=generator) for _ in range(scenario.epochs)]
    return hidden.orders


def _notes(scenario: Scenario, jacobian: Jacobian, observation: Observation) -> list[str]:
    """Where the bound's assumptions do not hold."""
    notes = []
    norms = any(isinstance(module, _BatchNorm) for module in jacobian.network.model.modules())
    buffers = any(name.endswith("running_mean") for name in observation.received)
    if norms and buffers and scenario.norm_mode == "train":
        notes.append("BatchNorm's running statistics are sent, too, and are not counted: attackers know more than this")
    if not scenario.defenses:
        seen = difference(observation.received, observation.initial, jacobian.update)
        missed = {name: value - seen[name].double() for name, value in jacobian.update.items()}
        off = float((inner(missed, missed) / inner(jacobian.update, jacobian.update)).sqrt())
        if off > DIFFERENT:
            notes.append(f"the replayed training is off by {off:.0%} of the update (dropout?): do not trust this")
    return notes


def _reached(run: Path | None, observation: Observation) -> Reached | None:
    """The strongest attack in a directory on this very update."""
    if run is None:
        return None
    digest = digest_of(observation)
    records = [one for one in RunDirectory(run).records() if one.observation == digest and one.psnr is not None]
    if not records:
        raise DataError(f"{run}: no scored attack on this scenario's update with this seed")
    best = max(records, key=lambda one: one.psnr or 0.0)
    return Reached(attack=best.attack, psnr=best.psnr or 0.0)
