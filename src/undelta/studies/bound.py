"""`undelta bound`: what an update determines of the images behind it, whatever the attack."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
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
from undelta.client.scenario import Scenario
from undelta.engine import MEMORY
from undelta.engine.devices import device_of
from undelta.errors import ConfigError, DataError
from undelta.evaluation.determined import ASSUMPTIONS, Whitened, ceilings, linear_reconstruction
from undelta.evaluation.image_prior import FEWEST, ImagePrior
from undelta.evaluation.jacobian import Jacobian, batches_of
from undelta.evaluation.metrics import psnr
from undelta.evaluation.sent import sent
from undelta.evaluation.spectrum import Spectrum, spectrum
from undelta.files import make_folder, to_json, write_bytes
from undelta.observation import Observation
from undelta.observation.file import digest_of
from undelta.seeding import stream
from undelta.studies.products import Kept
from undelta.trials.bound_file import BOUND, Bounded, BoundFile
from undelta.trials.config import load_scenario
from undelta.trials.directory import RunDirectory
from undelta.trials.pictures import write_sheet
from undelta.trials.record import describe_scenario, versions
from undelta.updates import difference, inner

PUBLIC = 200  # images that a prior is fitted to, at most
DIFFERENT = 1e-2  # of an update: a replay that is further off does not describe the training


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
) -> BoundFile:
    """The bound for each seed and each size of the noise.

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
    rows, spectra, notes, source, words, variance = list[Bounded](), list[dict[str, Any]](), list[str](), "", "", 1.0
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
        if own_spectra:
            prior, words = prior.of_each(private.images), f"{words}; each image's own power spectrum is granted"
        observation = observation.to(device_of(device))
        batches = batches_of(_orders(scenario, secrets[0], seed), scenario.training.sizes(len(private)))
        jacobian = Jacobian.at(private, observation, batches, memory=memory)
        channel = sent(jacobian.update, observation, scenario.protection)
        channel = channel.alone("noise as given, on every entry") if sigmas else channel
        case = _Case(
            whitened=Whitened(jacobian=jacobian, sent=channel, prior=prior.to(observation.device)),
            images=private.images,
            seed=seed,
            products=products,
            keep=keep,
        )
        pictures = [("private originals", private.images)]
        attack, reached = _reached(run, observation)
        for row, picture in case.rows(sigmas):
            rows.append(replace(row, attack=attack, reached=reached))
            pictures.append((f"best linear reconstruction, noise {row.sigma:.3g}: bound {row.bound:.1f} dB", picture))
        spectra.append(case.spectrum)
        notes += [*channel.notes, *_notes(scenario, jacobian, observation)]
        source, variance = channel.source, prior.variance
        if out is not None:
            write_sheet(out / f"bound-seed-{seed}.png", pictures)
            keep.drop()
    found = BoundFile(
        scenario=describe_scenario(scenario),
        noise=source,
        prior=words,
        prior_psnr=-10 * math.log10(variance),
        assumptions=ASSUMPTIONS,
        notes=tuple(dict.fromkeys(notes)),
        rows=tuple(rows),
        spectra=tuple(spectra),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        versions=versions(),
    )
    if out is not None:
        write_bytes(out / BOUND, to_json(found))
    return found


def _tell(told: Told | None, index: int, seeds: int, products: int, done: int) -> None:
    if told:
        told(index * products + min(done, products), seeds * products)


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
                fixed=self._spectrum.fixed(sigma) / self._spectrum.directions,
                products=ceiling.products,
            )
            yield row, picture

    @cached_property
    def _spectrum(self) -> Spectrum:
        return spectrum(self.whitened.jacobian, products=self.products // 10, seed=self.seed, keep=self.keep)

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


def _reached(run: Path | None, observation: Observation) -> tuple[str | None, float | None]:
    """The strongest attack in a directory on this very update, and its PSNR."""
    if run is None:
        return None, None
    digest = digest_of(observation)
    records = [one for one in RunDirectory(run).records() if one.observation == digest and one.psnr is not None]
    if not records:
        raise DataError(f"{run}: no scored attack on this scenario's update with this seed")
    best = max(records, key=lambda one: one.psnr or 0.0)
    return best.attack, best.psnr
