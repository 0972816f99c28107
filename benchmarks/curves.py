"""Quality on the way, drawn from files that hold it; computed after the runs, never used by an attack.

    python benchmarks/curves.py time docs/results/confirm.json --out docs/results/confirm.svg
    python benchmarks/curves.py paper docs/results/paper-cell.json --out docs/results

The first is PSNR over time in units of SME's, from what `attacks.py` wrote. The second is each metric over iterations
of AWA, from what `unfinished.py` wrote, beside the figure that the paper prints for the same case.
"""

from __future__ import annotations

import argparse
import json
import statistics
from functools import partial
from pathlib import Path
from typing import Any

from undelta.evaluation.measures import METRICS
from undelta.files import write_bytes
from undelta.report.charts import Mark, Series, chart
from undelta.report.svg import svg
from undelta.report.ticks import measured_axis
from undelta.studies.reproduce.published import AWA, COMPARISON, PRINTED, Case

SIZE = (760, 320)
TICKS = ((0.02, "0.02"), (0.05, "0.05"), (0.1, "0.1"), (0.2, "0.2"), (0.5, "0.5"), (1.0, "1"), (2.0, "2"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("time", "paper"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    content = json.loads(options.file.read_text())
    if options.what == "time":
        write_bytes(options.out, over_time(content["records"]).encode())
    else:
        for metric in PRINTED:
            write_bytes(options.out / f"{options.file.stem}-{metric}.svg", over_iterations(content[0], metric).encode())


def over_time(records: list[dict[str, Any]]) -> str:
    """A line per attack and seed; the time of a seed's own SME run is 1."""
    unit = {record["seed"]: record["seconds"] for record in records if record["name"] == "sme"}
    means: dict[str, list[float]] = {}
    for record in records:
        means.setdefault(record["name"], []).append(record["psnr"])
    names = sorted(means, key=lambda name: -statistics.mean(means[name]))
    series = []
    for style, name in enumerate(names):
        for record in (one for one in records if one["name"] == name):
            share = [(seconds / unit[record["seed"]], psnr) for seconds, psnr in record["curve"]]
            points = [
                Mark(x, psnr, f"{name}, seed {record['seed']}: {psnr:.1f} dB after {x:.2f} of SME's time")
                for x, psnr in share
                if x >= TICKS[0][0]
            ]
            series.append(Series(name=name, style=style, points=points, marks=False))
    axis = partial(measured_axis, TICKS, log=True)
    drawn = chart("PSNR over time", "time, SME's is 1", "PSNR in dB", series, x_axis=axis, size=SIZE)
    assert drawn is not None
    return svg(drawn)


def over_iterations(record: dict[str, Any], metric: str) -> str:
    """One trial's curve, and the paper's figure as a level."""
    scenario, measure = record["scenario"], METRICS[metric]
    case = Case(scenario["num_samples"], scenario["epochs"], scenario["batches"])
    points = [
        Mark(moment["iteration"], moment[metric], f"iteration {moment['iteration']}: {measure.show(moment[metric])}")
        for moment in record["curve"]
        if moment[metric] is not None
    ]
    level = getattr(COMPARISON[case][AWA], metric)
    printed = [Mark(x, level, f"paper: {measure.show(level)}") for x in (0, record["iterations"])]
    series = [
        Series(name="here", style=0, points=points),
        Series(name="the paper after 10 000", style=7, points=printed, marks=False),
    ]
    y_title = f"{measure.title} in dB" if metric == "psnr" else measure.title
    drawn = chart(f"AWA at {case}: {measure.title}", "iteration", y_title, series, size=SIZE)
    assert drawn is not None
    return svg(drawn)


if __name__ == "__main__":
    main()
