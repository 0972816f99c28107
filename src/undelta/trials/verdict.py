"""What an audit's numbers mean, in plain words.

A verdict is about one scenario with one defense. It is the worst case over attacks and seeds, and says what it rests on
and what it does not prove. Nothing here is measured; all numbers come from records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from undelta.evaluation.baselines import COLOR
from undelta.evaluation.measures import METRICS, QUALITIES
from undelta.evaluation.score import ImageScore
from undelta.trials.bound_file import NONE, BoundFile, Limit, highest
from undelta.trials.diagnosis import DEFAULT, Diagnosis, Level, Thresholds, count_recognizable, diagnose, explains
from undelta.trials.record import COMPLETED, UNDEFENDED, UNFINISHED, Record
from undelta.trials.trial import Trial


@dataclass(frozen=True, kw_only=True)
class Exposed:
    """The most exposed image: the one whose reconstruction is closest. All numbers are its own."""

    key: str
    """Of the trial."""
    attack: str
    seed: int
    image: int
    """Its place in the batch, from 0."""
    psnr: float | None
    ssim: float | None
    lpips: float | None
    baselines: dict[str, dict[str, float | None]] = field(default_factory=dict)
    """PSNR and SSIM of guesses without the update, for this image."""

    @property
    def text(self) -> str:
        numbers = [f"SSIM {self.ssim:.2f}"] if self.ssim is not None else []
        numbers += [f"PSNR {self.psnr:.1f} dB"] if self.psnr is not None else []
        color = self.baselines.get(COLOR, {})
        known = (self.ssim is not None and color.get("ssim") is not None, color.get("psnr") is not None)
        guess = [f"SSIM {color['ssim']:.2f}"] if known[0] else []
        guess += [f"PSNR {color['psnr']:.1f} dB"] if known[1] else []
        than = f"; its mean color alone has {', '.join(guess)}" if guess else ""
        return f"image {self.image + 1}, {', '.join(numbers)}{than}"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One scenario with one defense."""

    scenario: str
    defense: str
    diagnosis: Diagnosis
    text: str
    """The diagnosis with what it rests on."""
    images: int | None = None
    """Of one trial."""
    recognizable: int | None = None
    """Of these, in the trial with most of them."""
    exposed: Exposed | None = None
    worst: dict[str, float | None] = field(default_factory=dict)
    """What gates look at: per metric, the worst of any image in any trial; for fraction_recovered the worst trial."""
    worst_trial: dict[str, Any] | None = None
    """Where most images are recognizable: key, attack, arguments, seed, iterations."""
    trials: dict[str, int] = field(default_factory=dict)
    """How many ended how."""
    epsilon: float | None = None
    delta: float | None = None
    """What differential privacy promises the client; None where it does not."""
    bound: Limit | None = None
    """What no attack is expected to exceed, where that was asked."""
    thresholds: Thresholds = DEFAULT

    @property
    def title(self) -> str:
        return self.scenario if self.defense == UNDEFENDED else f"{self.scenario}, {self.defense}"

    @property
    def level(self) -> Level:
        return self.diagnosis.level

    def beside(self, bound: Limit | None) -> Verdict:
        """The same, with what no attack is expected to exceed."""
        return replace(self, bound=bound, text=f"{self.text} {bound.text}") if bound else self


Asked = Trial | Record
"""Who asked for a result: a trial, or the record of one."""


def judge(
    trials: Sequence[Asked],
    records: Mapping[str, Record],
    thresholds: Thresholds,
    bounds: Mapping[str, BoundFile] = NONE,
) -> list[Verdict]:
    """A verdict per scenario and defense, in the order of the trials; records and bounds are by their keys."""
    groups: dict[tuple[str, str], list[Asked]] = {}
    for trial in trials:
        groups.setdefault((trial.name, trial.defense), []).append(trial)
    found = {
        group: [record for trial in asked if (record := records.get(trial.key))] for group, asked in groups.items()
    }
    verdicts = []
    for group, asked in groups.items():
        own = {trial.key: bounds[trial.key] for trial in asked if trial.key in bounds}
        verdict = _judge_group(*group, asked, found[group], _twin(group, found, thresholds), thresholds)
        verdicts.append(verdict.beside(highest(own, found[group])))
    return verdicts


def _twin(
    group: tuple[str, str], found: Mapping[tuple[str, str], Sequence[Record]], thresholds: Thresholds
) -> list[Record]:
    """The completed records in which an attack works on the same scenario without the defense."""
    name, defense = group
    if defense == UNDEFENDED:
        return []
    done = [record for record in found.get((name, UNDEFENDED), ()) if record.status == COMPLETED]
    return [record for record in done if diagnose(record, thresholds).level == "leaks"]


def _judge_group(
    scenario: str,
    defense: str,
    trials: Sequence[Asked],
    found: Sequence[Record],
    twin: Sequence[Record],
    thresholds: Thresholds,
) -> Verdict:
    counts = Counter(record.status for record in found)
    counts[UNFINISHED] += len(trials) - len(found)
    ran = [record for record in found if record.measured]
    measured = [record for record in ran if record.images]
    recognizable = {record.key: count_recognizable(record, thresholds) for record in measured}
    top = max(measured, key=lambda record: (recognizable[record.key], *_likeness(record)), default=None)
    if top is None or not recognizable[top.key]:  # a failure that was scored must not hide what explains the update
        unscored = [record for record in ran if not record.images and (top is None or explains(record))]
        top = min(unscored, key=lambda record: 9.0 if record.mismatch is None else record.mismatch, default=top)
    diagnosis = _diagnosis(top, measured, twin, thresholds)
    exposed = _exposed(measured)
    names = ("key", "attack", "arguments", "seed", "iterations")
    private = next((record for record in found if record.delta is not None), None)
    return Verdict(
        scenario=scenario,
        defense=defense,
        diagnosis=diagnosis,
        text=" ".join(_sentences(diagnosis, top, exposed, +counts, trials, thresholds)),
        images=len(top.images) if top and top.images else None,
        recognizable=recognizable.get(top.key) if top else None,
        exposed=exposed,
        worst={metric: _worst(metric, measured) for metric in QUALITIES},
        worst_trial={name: getattr(top, name) for name in names} if top and top.images else None,
        trials=dict(+counts),
        epsilon=private.epsilon if private else None,
        delta=private.delta if private else None,
        thresholds=thresholds,
    )


def _diagnosis(
    top: Record | None, measured: Sequence[Record], twin: Sequence[Record], thresholds: Thresholds
) -> Diagnosis:
    if top is None:
        return Diagnosis(level="not measured", text="Nothing was measured, so nothing is known of this scenario.")
    own = diagnose(top, thresholds)
    if own.level != "attack failed" or not measured:
        return own
    same = {_attempt(record) for record in measured if record.status == COMPLETED}
    works = [record for record in twin if _attempt(record) in same]
    if not works:
        return own
    best = max(works, key=lambda record: count_recognizable(record, thresholds))
    count = count_recognizable(best, thresholds)
    return Diagnosis(
        level="resisted",
        text=f"{best.attack}, which makes {count} of {len(best.images)} images recognizable without the defense, fails "
        "here. Other attacks may do better.",
    )


def _attempt(record: Record) -> tuple[str, str, int]:
    """The attack and, by the seed, the images that it is after."""
    return record.attack, str(record.arguments), record.seed


def _worst(metric: str, records: Sequence[Record]) -> float | None:
    """The value that is worst for privacy, of any image in any trial."""
    if metric == "fraction_recovered":
        values = [record.fraction_recovered for record in records]
    else:
        values = [getattr(image, metric) for record in records for image in record.images]
    known = [value for value in values if value is not None]
    if not known:
        return None
    return float(max(known) if METRICS[metric].rises else min(known))


def _likeness(record: Record) -> tuple[float, float]:
    """Orders trials with equally many recognizable images."""
    exposed = _exposed([record])
    return closeness(exposed) if exposed else (-2.0, -1.0)


def closeness(image: ImageScore | Exposed) -> tuple[float, float]:
    """Orders images by how close their reconstructions are: by SSIM where there is one, else by PSNR."""
    return (-1.0 if image.ssim is None else image.ssim), (-1.0 if image.psnr is None else image.psnr)


def _exposed(records: Sequence[Record]) -> Exposed | None:
    images = [
        (record, index) for record in records for index, image in enumerate(record.images) if image.psnr is not None
    ]
    if not images:
        return None
    record, index = max(images, key=lambda pair: closeness(pair[0].images[pair[1]]))
    image = record.images[index]
    return Exposed(
        key=record.key,
        attack=record.attack,
        seed=record.seed,
        image=index,
        psnr=image.psnr,
        ssim=image.ssim,
        lpips=image.lpips,
        baselines={
            name: asdict(one.images[index]) for name, one in record.baselines.items() if index < len(one.images)
        },
    )


def _sentences(
    diagnosis: Diagnosis,
    top: Record | None,
    exposed: Exposed | None,
    counts: Mapping[str, int],
    trials: Sequence[Asked],
    thresholds: Thresholds,
) -> list[str]:
    coverage = ", ".join(f"{times(count, 'trial')} {status}" for status, count in counts.items())
    sentences = [diagnosis.text]
    if top and top.images:
        ssim = exposed is None or exposed.ssim is not None
        rule = f"SSIM >= {thresholds.ssim:g}" if ssim else f"PSNR >= {thresholds.psnr:g} dB"
        sentences.append(
            f"Most exposed: {exposed.text} (attack {exposed.attack}, seed {exposed.seed}; recognizable from {rule})."
            if exposed
            else "Most exposed: no number, since every image diverged."
        )
    attacks = len({(trial.attack, str(trial.arguments)) for trial in trials})
    seeds = len({trial.seed for trial in trials})
    sentences.append(f"Worst case of {times(attacks, 'attack')} and {times(seeds, 'seed')} ({coverage}).")
    if top and diagnosis.level != "leaks":
        sentences += [f"Note: {note}." for note in top.notes]
    return sentences


def times(count: int, noun: str) -> str:
    """So many of something, in words."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def headline(verdicts: Sequence[Verdict]) -> str:
    """All scenarios in one sentence."""
    alone: dict[Level, str] = {
        "leaks": "The client's update leaks private images.",
        "not compared": "The client's update probably leaks private images: compare what was found with the originals.",
        "attack failed": "No attack worked on the client's update, which says nothing about its safety.",
        "resisted": "The client's update resisted an attack that works without its defense.",
        "not measured": "Nothing was measured, so nothing is known.",
    }
    many: dict[Level, tuple[str, str]] = {
        "leaks": ("{} leaks private images", "{} leak private images"),
        "not compared": ("{} probably leaks private images", "{} probably leak private images"),
        "attack failed": ("on {} no attack worked, which says nothing about safety",) * 2,
        "resisted": ("{} resisted an attack that works without the defense",) * 2,
        "not measured": ("{} was not measured", "{} were not measured"),
    }
    counts = Counter(verdict.level for verdict in verdicts)
    if len(verdicts) == 1:
        (one,) = verdicts
        found = f": {one.recognizable} of {one.images} can be recognized." if one.recognizable else "."
        return alone[one.level].removesuffix(".") + found
    parts = [words[counts[level] > 1].format(counts[level]) for level, words in many.items() if counts[level]]
    return f"Of {len(verdicts)} scenarios and defenses, {'; '.join(parts)}." if parts else alone["not measured"]
