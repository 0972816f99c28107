"""Which of the paper's claims hold at this scale: each one computed from records, with its numbers, whatever they say.

A difference between two methods counts if paired t-tests, one over all images of at least three seeds and one over the
seeds' means, both give it to chance in less than one of twenty cases. Of several, all must come out as the paper says
for a claim to hold, and at least half for it to hold in part.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from scipy.stats import mannwhitneyu

from undelta.evaluation.measures import METRICS
from undelta.studies.reproduce import published
from undelta.studies.reproduce.finding import Finding, Outcome, comparisons, counted, counting, gains_of, judged
from undelta.studies.reproduce.published import APPROXIMATION, AWA, GENG, LINEAR, PRINTED
from undelta.studies.reproduce.reproductions import (
    ALL_EPOCHS,
    AVERAGED,
    GRANTED,
    INFERRED,
    JOINT,
    RIVALS,
    STRONGEST,
    TUNED,
    Reproduction,
)
from undelta.studies.reproduce.results import CHANCE, LEAST_SEEDS, RECOGNIZABLE, Advantage, Cell, Results, advantage
from undelta.trials.tuning_file import Evaluation
from undelta.trials.verdict import times

MARGIN = 0.5  # dB: what "as well as" may lack
MODERATE = 0.25
"""The relative loss of a metric up to which a decline is moderate; the paper's own are 5, 12 and 4 %."""


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
            found = [*_leading(results), _scaling(results)]
        case "figure-n8e32":
            found = [*_leading(results)]
        case "ablation":
            found = [
                _gain("Linear weights improve on the approximation alone", results, LINEAR, APPROXIMATION),
                _gain("The error-driven enhancement improves on linear weights", results, AWA, LINEAR),
                _gain(
                    "The whole method, with Q tuned here, improves on the approximation", results, TUNED, APPROXIMATION
                ),
            ]
        case "epochs":
            found = [_decline(results)]
        case "large":
            found = [_recognized("AWA reconstructs the main visual structures of a large client", results)]
        case "tuning":
            found = [_falling(tuning, random), *_carrying(results)]
        case "labels":
            found = [
                _no_worse("Not in the paper: inferred labels do as well as granted ones", results, INFERRED),
                _no_worse("Not in the paper: labels optimized jointly do as well as granted ones", results, JOINT),
            ]
        case _:
            found = [_recognized("AWA reconstructs updates leaked at different stages of training", results)]
    return [*found, *_ours(results)]


def _leading(results: Results) -> Iterator[Finding]:
    """Whether AWA is best, and the order of all: with the Q that the paper tuned, and with one tuned here as it was."""
    for method in (AWA, TUNED):
        if method in results.methods:
            yield _best(results, method)
            yield _order(results, method)


def _best(results: Results, method: str) -> Finding:
    says = f"{method} has the highest PSNR and SSIM and the lowest LPIPS in every scenario"
    leads, words, all_gains = [], [], list[Advantage]()
    # A lead over those rivals that happen to have numbers, or over the only one that was run, would mean little.
    rows = [row for row in results.rows if all(results.at(row, rival).scored for rival in RIVALS)]
    rows, left = counting(results, rows, (*RIVALS, method))
    for metric in PRINTED:
        gains = [
            [gain for rival in RIVALS for gain in gains_of(results, [row], method, rival, (metric,))] for row in rows
        ]
        best = [all(gain.sign > 0 for gain in known) for known in gains if known]
        leads += best
        all_gains += [gain for known in gains for gain in known]
        if best:
            words.append(f"{sum(best)} of {len(best)} by {METRICS[metric].title}")
    numbers = f"{method} is clearly best in {', '.join(words)}."
    for other in (AVERAGED, ALL_EPOCHS):  # readings of rivals that are ours, and stronger
        extra = gains_of(results, rows, method, other, ("psnr",)) if other in results.methods else []
        if extra:
            numbers += f" Against {other}, {statistics.fmean(gain.mean for gain in extra):+.1f} dB."
    return judged(says, leads, numbers + left, all_gains)


def _order(results: Results, ours: str) -> Finding:
    methods = (*RIVALS, ours)
    rows = [row for row in results.rows if all(results.at(row, method).value("psnr") is not None for method in methods)]
    if not rows:
        return Finding(says=f"The order by PSNR is {ours} > AGIC, GENG > iDLG")
    rows, left = counting(results, rows, methods)
    cells = {method: [results.at(row, method) for row in rows] for method in methods}
    known = cells if ours == AWA else {**cells, ours: [results.at(row, AWA) for row in rows]}
    printed = {name: statistics.fmean(one.figures.psnr for one in own if one.figures) for name, own in known.items()}
    here = {name: statistics.fmean(one.value("psnr") or 0.0 for one in own) for name, own in cells.items()}
    order = sorted(methods, key=lambda method: -printed[method])
    found = sorted(order, key=lambda method: -here[method])
    outcome: Outcome = "holds" if found == order else "holds in part" if found[0] == order[0] else "does not hold"
    gaps = [gain for pair in pairwise(found) for gain in gains_of(results, rows, *pair, ("psnr",))]
    if outcome == "holds" and not all(gain.sign > 0 for gain in gaps):
        outcome = "holds in part"  # some neighbors are within the spread
    if min(gain.seeds for gain in gaps) < LEAST_SEEDS:
        outcome = "not measured"
    means = ", ".join(f"{method} {here[method]:.2f}" for method in found)
    return Finding(
        says=f"The order by PSNR is {' > '.join(order)}",
        outcome=outcome,
        numbers=f"Mean PSNR over {times(len(rows), 'scenario')}: {means} dB ({counted(cells[ours])}).{left}",
    )


def _scaling(results: Results) -> Finding:
    """Whether AWA still runs where rivals become too costly: their cost, and AWA's lead over the one that remains."""
    large = [row for row in results.rows if any(results.at(row, rival).reason for rival in RIVALS)]
    large = [row for row in large if results.at(row, AWA).trials]
    judges, left = counting(results, large, (AWA, GENG))
    gains = gains_of(results, judges, AWA, GENG)
    ahead = [gain.sign > 0 for gain in gains]
    numbers = f"Over GENG, the only rival there, AWA is ahead in {comparisons(ahead)}.{left}"
    costs = []
    for rival in RIVALS:
        ratios = [_ratio(results.at(row, rival), results.at(row, AWA)) for row in results.rows if row not in large]
        factors = [ratio for ratio in ratios if ratio is not None]
        if factors:
            costs.append(f"{rival} {min(factors):.1f} to {max(factors):.1f}")
    if costs:
        numbers += f" Time per iteration in units of AWA's, in the smaller scenarios: {', '.join(costs)}."
    return judged("AWA still works for N >= 64, where iDLG and AGIC become impractical", ahead, numbers, gains)


def _ratio(first: Cell, second: Cell) -> float | None:
    times = first.seconds_per_iteration(), second.seconds_per_iteration()
    return times[0] / times[1] if times[0] is not None and times[1] else None


def _gain(says: str, results: Results, better: str, worse: str) -> Finding:
    """Whether one form is better than another by all metrics, with relative changes as the paper has them."""
    gains = gains_of(results, results.rows[:1], better, worse)
    return judged(says, [gain.sign > 0 for gain in gains], "; ".join(map(_change, gains)) + ".", gains)


def _no_worse(says: str, results: Results, method: str) -> Finding:
    """Whether a method does as well as granted labels: by PSNR, no worse than a margin; not decided if seeds differ."""
    gains = gains_of(results, results.rows[:1], method, GRANTED)
    found = judged(says, [gain.sign >= 0 for gain in gains], "; ".join(map(_change, gains)) + ".", gains)
    least = min((gain.least for gain in gains if gain.metric == "psnr"), default=0.0)
    if found.outcome == "holds" and least < -MARGIN:
        return replace(found, outcome="not decided")
    return found


def _change(gain: Advantage) -> str:
    """The change of a metric over the seeds that both have, here and in the paper."""
    measure, wanted = METRICS[gain.metric], len(gain.cells[0].records)
    text = f"{measure.title} {measure.show(gain.before)} to {measure.show(gain.after)}"
    if gain.before:
        text += f" ({_relative(gain)})"
    if gain.seeds < wanted:
        text += f" over {gain.seeds} of {wanted} seeds"
    return text if gain.sign else f"{text}, within the spread"


def _relative(gain: Advantage) -> str:
    """The relative change, here and in the paper."""
    text = f"{gain.after / gain.before - 1:+.1%}"
    new, old = (getattr(cell.figures, gain.metric, None) for cell in gain.cells)
    return text if new is None or old is None else f"{text}; paper {new / old - 1:+.1%}"


def _decline(results: Results) -> Finding:
    rows = results.rows
    falls, words, gains = [], [], list[Advantage]()
    for metric in PRINTED:
        measure = METRICS[metric]
        values = [value for row in rows if (value := results.at(row, AWA).value(metric)) is not None]
        if len(values) < len(rows):
            continue
        gain = advantage(results.at(rows[-1], AWA), results.at(rows[0], AWA), metric)
        gains += [gain] if gain else []
        falls.append(bool(gain and gain.sign < 0 and -gain.mean <= MODERATE * gain.before))
        steady = all(measure.sign * (before - after) >= 0 for before, after in pairwise(values))
        notes = [_relative(gain)] if gain and gain.before else []
        notes.append("steadily worse" if steady else "not steadily")
        if not gain or not gain.sign:
            notes.append("ends within the spread")
        words.append(f"{measure.title} {', '.join(map(measure.show, values))} ({', '.join(notes)})")
    numbers = f"{results.here(rows[0])} to {results.here(rows[-1])}: {'; '.join(words)}."
    return judged("Quality declines moderately as E increases", falls, numbers, gains)


def _recognized(says: str, results: Results) -> Finding:
    """Whether images can be recognized: at least half of them in every scenario, or in part a quarter of them all."""
    shares, words = [], []
    for cell in (results.at(row, AWA) for row in results.rows):
        share = cell.recognizable()
        if share is None:
            return Finding(says=says)
        numbers = ", ".join(f"{METRICS[metric].title} {cell.show(metric)}" for metric in PRINTED)
        words.append(f"{cell.here}: {share:.0%} of the images have an SSIM of {RECOGNIZABLE:g} or more ({numbers})")
        shares.append(share)
    part: Outcome = "holds in part" if statistics.mean(shares) >= 0.25 else "does not hold"
    cells = [results.at(row, AWA) for row in results.rows]
    numbers = f"{'; '.join(words)} ({counted(cells)})."
    if min(len(cell.scored) for cell in cells) < LEAST_SEEDS:
        return Finding(says=says, numbers=numbers)
    return Finding(says=says, outcome="holds" if min(shares) >= 0.5 else part, numbers=numbers)


def _falling(tuning: Sequence[Evaluation], random: int) -> Finding:
    says = "Bayesian optimization finds lower f(Q) as trials accumulate"
    blind = [trial.value for trial in tuning if trial.value is not None and trial.number < random]
    guided = [trial.value for trial in tuning if trial.value is not None and trial.number >= random]
    if not blind or not guided:
        return Finding(says=says)
    before, after = min(blind), min(guided)
    # The least of more trials is less by chance alone; that guided ones are lower as a whole is not.
    chance = float(mannwhitneyu(guided, blind, alternative="less").pvalue)
    better: Outcome = "holds" if chance < CHANCE else "holds in part"
    return Finding(
        says=says,
        outcome=better if after < before else "does not hold",
        numbers=f"Smallest f(Q) of {times(len(blind), 'random trial')} {before:.4g}, of the "
        f"{times(len(guided), 'trial')} after them {after:.4g}; medians {statistics.median(blind):.4g} and "
        f"{statistics.median(guided):.4g} (rank-sum test, p = {chance:.2g}).",
    )


def _carrying(results: Results) -> Iterator[Finding]:
    """Tuned once, used elsewhere: against no weights, in scenarios other than the one it was tuned in."""
    for method, rows, says in (
        (TUNED, results.rows[1:], "Q tuned once carries over to other scenarios"),
        (AWA, results.rows, "The paper's own Q, tuned for another network and other images, carries over to these"),
    ):
        judges, left = counting(results, rows, (method, APPROXIMATION))
        gains = {row: gains_of(results, [row], method, APPROXIMATION) for row in judges}
        words = [f"{results.here(row)}: {', '.join(map(_change, own))}" for row, own in gains.items() if own]
        found = [gain for own in gains.values() for gain in own]
        yield judged(says, [gain.sign > 0 for gain in found], f"Against no weights at {'; '.join(words)}.{left}", found)


def _ours(results: Results) -> Iterator[Finding]:
    """What the paper does not have: our own attack beside AWA."""
    if STRONGEST not in results.methods:
        return
    rows, left = counting(results, results.rows, (STRONGEST, AWA))
    gains = gains_of(results, rows, STRONGEST, AWA)
    ahead = [gain.sign > 0 for gain in gains]
    decibels = [gain.mean for gain in gains if gain.metric == "psnr"]
    mean = f" {statistics.fmean(decibels):+.2f} dB in the mean." if decibels else ""
    says = "Not in the paper: our own attack, strongest, is better than AWA"
    yield judged(says, ahead, f"Ahead in {comparisons(ahead)}.{mean}{left}", gains)
