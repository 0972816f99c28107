"""What the report says in words where the audit itself left no verdict, and what no report can say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from undelta.evaluation.measures import METRICS
from undelta.report.read import Audit
from undelta.report.tables import grouped, value_of
from undelta.trials.record import Record
from undelta.trials.verdict import Verdict

LIMITS = (
    "A poor reconstruction shows that these attacks, with these settings and iterations, did not recover these images. "
    "It does not prove that nobody can: a stronger attack, more iterations or other knowledge may succeed.",
    "A good reconstruction is a proof of leakage for these images, this model and this round; other images of the same "
    "client may fare better or worse.",
    "Reconstructions were matched with the originals before scoring, and no attack saw an original. Differences "
    "between attacks that are smaller than the spread over seeds mean little.",
)


def verdicts(audit: Audit, labels: Mapping[str, str]) -> list[Verdict]:
    """One statement per scenario and defense: the audit's own where it made one, else the measured numbers alone.

    An audit judges some scenarios without trials of their own, where another one asks for the very same; they follow.
    """
    said = {(verdict.scenario, verdict.defense): verdict for verdict in audit.verdicts}
    groups = grouped(audit.records, lambda record: record.group)
    stated = [
        said.get(group) or Verdict(scenario=group[0], defense=group[1], text=numbers(trials, labels))
        for group, trials in groups.items()
    ]
    return stated + [verdict for group, verdict in said.items() if group not in groups]


def numbers(trials: Sequence[Record], labels: Mapping[str, str]) -> str:
    """The closest reconstruction of a scenario, without a judgment."""
    scored = [record for record in trials if record.scored]
    if not scored:
        return "Nothing was measured: no trial of this scenario has been scored."
    closest = max(scored, key=lambda record: (record.ssim or 0.0, record.psnr or 0.0))
    iterations = "" if closest.iterations is None else f", {closest.iterations} iterations"
    psnr, ssim = (METRICS[key].show(value_of(closest, key)) for key in ("psnr", "ssim"))
    count = f" over {len(closest.images)} images" if closest.images else ""
    best = max((image.psnr for image in closest.images if image.psnr is not None), default=None)
    best_image = "" if best is None else f"; its best image has {best:.2f} dB"
    coverage = "" if len(scored) == len(trials) else f" {len(scored)} of {len(trials)} trials were scored."
    return (
        f"The closest reconstruction came from {labels[closest.key]} (seed {closest.seed}{iterations}): "
        f"mean PSNR {psnr} dB, mean SSIM {ssim}{count}{best_image}.{coverage}"
    )
