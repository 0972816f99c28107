"""What a trial costs beside its attack: an audit of many tiny ones by one worker process.

    python benchmarks/trials.py --out docs/results/trials.json

The time of the whole command is measured, imports and verdict included, and the processor's, which other work on the
machine disturbs less.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from workloads import write

AUDIT = """
name = "tiny trials"
seeds = {seeds}
[scenario]
data = "digits"
num_samples = 2
model = "cnn"
model_arguments = {{ width = 4, hidden = 16 }}
epochs = 2
batches = 1
[[attacks]]
attack = "awa"
steps = {steps}
"""


def audited(folder: Path, trials: int, steps: int) -> dict[str, float]:
    """One audit, with the time that its attacks took."""
    out = folder / f"{trials}"
    (folder / "audit.toml").write_text(AUDIT.format(seeds=list(range(trials)), steps=steps))
    command = [sys.executable, "-m", "undelta", "audit", str(folder / "audit.toml"), "--out", str(out)]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(  # noqa: S603
        [*command, "--workers", "1"], check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    records = [json.loads(path.read_text()) for path in out.glob("trials/*/record.json")]
    if len(records) != trials:
        sys.exit(f"expected {trials} records, got {len(records)}")
    return {
        "trials": trials,
        "seconds": seconds,
        "processor_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "attack_seconds": sum(record["seconds"] for record in records),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        runs = [audited(Path(place), count, options.steps) for count in (1, options.trials)]
    one, many = runs
    each = {
        key: (many[key] - one[key]) / (many["trials"] - one["trials"])
        for key in ("seconds", "processor_seconds", "attack_seconds")
    }
    write(options.out, {"seeds": f"0 to {options.trials - 1}", "steps": options.steps, "runs": runs, "each": each})
    print(f"{options.trials} trials in {many['seconds']:.1f} s (one: {one['seconds']:.1f} s)")
    print("one more trial: " + ", ".join(f"{key} {value:.3f}" for key, value in each.items()))


if __name__ == "__main__":
    main()
