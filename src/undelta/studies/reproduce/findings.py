"""Which of the paper's claims hold at this scale: each one computed from records, with its numbers, whatever they say.

A difference between two methods counts where its mean over seeds, paired seed by seed, exceeds its standard error. Of
several, all must come out as the paper says for a claim to hold, and at least half for it to hold in part.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from undelta.evaluation.measures import METRICS
from undelta.studies.reproduce import published
from undelta.studies.reproduce.published import APPROXIMATION, AWA, GENG, LINEAR, PRINTED
from undelta.studies.reproduce.reproductions import RIVALS, STRONGEST, TUNED, Reproduction
from undelta.studies.reproduce.results import RECOGNIZABLE, Advantage, Measured, Results, advantage
from undelta.trials.tuning_file import Evaluation
from undelta.trials.verdict import times

Outcome = Literal["holds", "holds in part", "does not hold", "not measured"]
MODERATE = 0.25
"""The relative loss of a metric up to which a decline is moderate; the paper's own are 5, 12 and 4 %."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A sentence of the paper, and what was measured here."""

    says: str
    outcome: Outcome
    numbers: str


def findings_of(
    reproduction: Reproduction,
    results: Results,
    tuning: Sequence[Evaluation] = (),
    *,
    random: int = published.TUNING_RANDOM,
) -> list[Finding]:
    """What the paper says of this table or figure; of a tuning's trials the first ``random`` were drawn blindly."""
    found: list[Finding]
    match reproduction.name:
        case "comparison":
            found = [*_ordering(results), _scaling(results)]
        case "figure-n8e32":
            found = [*_ordering(results)]
        case "ablation":
            found = [
                _gain("Linear weights improve on the approximation alone", results, LINEAR, APPROXIMATION),
                _gain("The error-driven enhancement improves on linear weights", results, AWA, LINEAR),
            ]
        case "epochs":
            found = [_decline(results)]
        case "large":
            found = [_recognized("AWA reconstructs the main visual structures of a large client", results)]
        case "tuning":
            found = [_falling(tuning, random), *_carrying(results)]
        case _:
            found = [_recognized("AWA reconstructs updates leaked at different stages of training", results)]
    return [*found, *_ours(results)]


def _ordering(results: Results) -> Iterator[Finding]:
    yield _best(results)
    yield _order(results)


def _best(results: Results) -> Finding:
    says = "AWA has the highest PSNR and SSIM and the lowest LPIPS in every scenario"
    won, counted, words = 0, 0, []
    for metric in PRINTED:
        compared = best = 0
        for row in results.rows:
            gains = [advantage(results.at(row, AWA), results.at(row, rival), metric) for rival in RIVALS]
            known = [gain for gain in gains if gain]
            if known and _complete(results, row, RIVALS):
                compared += 1
                best += all(gain.sign > 0 for gain in known)
        if compared:
            words.append(f"{best} of {compared} by {METRICS[metric].title}")
        won, counted = won + best, counted + compared
    if not counted:
        return _unmeasured(says)
    return Finding(says=says, outcome=_share(won, counted), numbers=f"AWA is clearly best in {', '.join(words)}.")


def _order(results: Results) -> Finding:
    methods = (*RIVALS, AWA)
    rows = [row for row in results.rows if all(results.at(row, method).value("psnr") is not None for method in methods)]
    printed = {
        method: statistics.fmean(
            figures.psnr for row in rows if (figures := results.at(row, method).cell.figures) is not None
        )
        for method in (methods if rows else ())
    }
    order = sorted(printed, key=lambda method: -printed[method])
    says = f"The order by PSNR is {' > '.join(order or (AWA, 'AGIC, GENG', 'iDLG'))}"
    if not rows:
        return _unmeasured(says)
    here = {method: statistics.fmean(results.at(row, method).value("psnr") or 0.0 for row in rows) for method in order}
    found = sorted(here, key=lambda method: -here[method])
    means = ", ".join(f"{method} {here[method]:.2f}" for method in found)
    outcome: Outcome = "holds" if found == order else "holds in part" if found[0] == order[0] else "does not hold"
    return Finding(says=says, outcome=outcome, numbers=f"Mean PSNR over {times(len(rows), 'scenario')}: {means} dB.")


def _scaling(results: Results) -> Finding:
    """Whether AWA still runs where rivals become too costly: their cost, and AWA's lead over the one that remains."""
    says = "AWA still works for N >= 64, where iDLG and AGIC become impractical"
    large = [row for row in results.rows if any(results.at(row, rival).cell.reason for rival in RIVALS)]
    gains = [advantage(results.at(row, AWA), results.at(row, GENG), metric) for row in large for metric in PRINTED]
    known = [gain for gain in gains if gain]
    if not known:
        return _unmeasured(says)
    won = sum(gain.sign > 0 for gain in known)
    numbers = f"Over GENG, the only rival there, AWA is ahead in {won} of {len(known)} comparisons (scenario x metric)."
    timed = [row for row in results.rows if row not in large and results.at(row, AWA).seconds_per_iteration()]
    costs = []
    for rival in RIVALS:
        ratios = [_ratio(results.at(row, rival), results.at(row, AWA)) for row in timed]
        factors = [ratio for ratio in ratios if ratio is not None]
        if factors:
            costs.append(f"{rival} {min(factors):.1f} to {max(factors):.1f}")
    if costs:
        numbers += f" Time per iteration in units of AWA's, in the smaller scenarios: {', '.join(costs)}."
    return Finding(says=says, outcome=_share(won, len(known)), numbers=numbers)


def _ratio(first: Measured, second: Measured) -> float | None:
    times = first.seconds_per_iteration(), second.seconds_per_iteration()
    return times[0] / times[1] if times[0] is not None and times[1] else None


def _gain(says: str, results: Results, better: str, worse: str) -> Finding:
    """Whether one form is better than another by all metrics, with relative changes as the paper has them."""
    row = results.rows[0]
    first, second = results.at(row, better), results.at(row, worse)
    gains = [gain for metric in PRINTED if (gain := advantage(first, second, metric))]
    if not gains:
        return _unmeasured(says)
    words = [_change(gain, first, second) for gain in gains]
    return Finding(
        says=says, outcome=_share(sum(gain.sign > 0 for gain in gains), len(gains)), numbers="; ".join(words) + "."
    )


def _change(gain: Advantage, first: Measured, second: Measured) -> str:
    """The change of a metric over the seeds that both have, here and in the paper."""
    measure = METRICS[gain.metric]
    text = f"{measure.title} {measure.show(gain.second)} to {measure.show(gain.first)}"
    if gain.second:
        text += f" ({_relative(gain, first, second)})"
    if gain.seeds < len(first.records):
        text += f" over {gain.seeds} of {len(first.records)} seeds"
    return text if gain.sign else f"{text}, within the spread"


def _relative(gain: Advantage, first: Measured, second: Measured) -> str:
    """The relative change from the second to the first, here and in the paper."""
    text = f"{gain.first / gain.second - 1:+.1%}"
    if first.cell.figures and second.cell.figures:
        old, new = (getattr(cell.figures, gain.metric) for cell in (second.cell, first.cell))
        text += f"; paper {new / old - 1:+.1%}"
    return text


def _decline(results: Results) -> Finding:
    says = "Quality declines moderately as E increases"
    first, *_, last = rows = results.rows
    ends = results.at(last, AWA), results.at(first, AWA)
    words, falls, known = [], 0, 0
    for metric in PRINTED:
        values = [results.at(row, AWA).value(metric) for row in rows]
        if None in values:
            continue
        gain = advantage(*ends, metric)
        known += 1
        falls += bool(gain and gain.sign < 0 and -gain.mean <= MODERATE * gain.second)
        shown = ", ".join(METRICS[metric].show(value) for value in values)
        steady = all(
            METRICS[metric].sign * (before - after) >= 0
            for before, after in pairwise(values)
            if before is not None and after is not None
        )
        notes = [_relative(gain, *ends)] if gain and gain.second else []
        notes.append("steadily worse" if steady else "not steadily")
        if not gain or not gain.sign:
            notes.append("ends within the spread")
        words.append(f"{METRICS[metric].title} {shown} ({', '.join(notes)})")
    if not known:
        return _unmeasured(says)
    return Finding(
        says=says,
        outcome=_share(falls, known),
        numbers=f"{results.here(first)} to {results.here(last)}: {'; '.join(words)}.",
    )


def _recognized(says: str, results: Results) -> Finding:
    """Whether images can be recognized: at least half of them in every scenario, or in part a quarter of them all."""
    shares = {row: results.at(row, AWA).recognizable() for row in results.rows}
    known = {row: share for row, share in shares.items() if share is not None}
    if len(known) < len(shares):
        return _unmeasured(says)
    words = []
    for row, share in known.items():
        cell = results.at(row, AWA)
        numbers = ", ".join(f"{METRICS[metric].title} {cell.show(metric)}" for metric in PRINTED)
        words.append(
            f"{results.here(row)}: {share:.0%} of the images have an SSIM of {RECOGNIZABLE:g} or more ({numbers})"
        )
    outcome: Outcome = "does not hold"
    if all(share >= 0.5 for share in known.values()):
        outcome = "holds"
    elif statistics.mean(known.values()) >= 0.25:
        outcome = "holds in part"
    return Finding(says=says, outcome=outcome, numbers="; ".join(words) + ".")


def _falling(tuning: Sequence[Evaluation], random: int) -> Finding:
    says = "Bayesian optimization finds lower f(Q) as trials accumulate"
    blind = [trial.value for trial in tuning if trial.value is not None and trial.number < random]
    guided = [trial.value for trial in tuning if trial.value is not None and trial.number >= random]
    if not blind or not guided:
        return _unmeasured(says)
    before, after = min(blind), min(guided)
    return Finding(
        says=says,
        outcome="holds" if after < before else "does not hold",
        numbers=f"Smallest f(Q) of {times(len(blind), 'random trial')} {before:.4g}, of the "
        f"{times(len(guided), 'trial')} after them {after:.4g}.",
    )


def _carrying(results: Results) -> Iterator[Finding]:
    """Tuned once, used elsewhere: against no weights, in scenarios other than the one it was tuned in."""
    elsewhere = results.rows[1:]
    for method, says in (
        (TUNED, "Q tuned once carries over to other scenarios"),
        (AWA, "The paper's own Q, tuned for another network and other images, carries over to these"),
    ):
        rows = elsewhere if method == TUNED else results.rows
        gains = {
            row: [
                gain
                for metric in PRINTED
                if (gain := advantage(results.at(row, method), results.at(row, APPROXIMATION), metric))
            ]
            for row in rows
        }
        known = [gain for row in rows for gain in gains[row]]
        if not known:
            yield _unmeasured(says)
            continue
        words = [
            f"{results.here(row)}: "
            + ", ".join(_change(gain, results.at(row, method), results.at(row, APPROXIMATION)) for gain in gains[row])
            for row in rows
            if gains[row]
        ]
        outcome = _share(sum(gain.sign > 0 for gain in known), len(known))
        yield Finding(says=says, outcome=outcome, numbers=f"Against no weights at {'; '.join(words)}.")


def _ours(results: Results) -> Iterator[Finding]:
    """What the paper does not have: our own attack beside AWA."""
    if STRONGEST not in results.methods:
        return
    says = "Not in the paper: our own attack, strongest, is better than AWA"
    gains = [
        gain
        for row in results.rows
        for metric in PRINTED
        if (gain := advantage(results.at(row, STRONGEST), results.at(row, AWA), metric))
    ]
    if not gains:
        yield _unmeasured(says)
        return
    won = sum(gain.sign > 0 for gain in gains)
    decibels = [gain.mean for gain in gains if gain.metric == "psnr"]
    mean = f" {statistics.fmean(decibels):+.2f} dB in the mean." if decibels else ""
    numbers = f"Ahead in {won} of {len(gains)} comparisons (scenario x metric).{mean}"
    yield Finding(says=says, outcome=_share(won, len(gains)), numbers=numbers)


def _complete(results: Results, row: str, methods: Sequence[str]) -> bool:
    """Whether all that were to run have numbers: a lead over those that happen to be there would mean little."""
    return all(one.cell.reason or one.scored for one in (results.at(row, method) for method in methods))


def _share(won: int, counted: int) -> Outcome:
    return "holds" if won == counted else "holds in part" if 2 * won >= counted else "does not hold"


def _unmeasured(says: str) -> Finding:
    return Finding(says=says, outcome="not measured", numbers="No trials with numbers for it yet.")
