"""Several attacks on the same update, side by side: a contact sheet, a table, a report.

    python examples/compare_attacks.py --out comparison

Equal iterations are not equal time: an iteration of one attack may cost several of another. The table has both.
For many scenarios, seeds and crashes use `undelta audit` (docs/audit.md).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from undelta import MissingKnowledge, Scenario, Trial, run, write_outcomes, write_report, write_sheet


def main() -> None:
    """Run the example."""
    options = argparse.ArgumentParser(description="Compare attacks on one update.")
    options.add_argument("--data", default="photos", help="photos, faces, digits, a folder of pictures, ...")
    options.add_argument("--num-samples", type=int, default=4)
    options.add_argument("--attacks", nargs="+", default=["ig", "sme", "awa", "strongest", "analytic"])
    options.add_argument("--steps", type=int, default=60)
    options.add_argument("--out", type=Path, default=Path("comparison"))
    given = options.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)

    scenario = Scenario(
        data=given.data,
        num_samples=given.num_samples,
        model="cnn",
        model_arguments={"width": 32},
        epochs=4,
        batches=2,
    )
    trials, outcomes, rows = [], [], [("private", scenario.draw(seed=0).images)]
    for attack in given.attacks:
        arguments = {} if attack == "analytic" else {"steps": given.steps}  # the closed form has no iterations
        if attack == "strongest":
            arguments["rollout_steps"] = given.steps  # of its second phase
        try:
            trial = Trial(scenario=scenario, attack=attack, arguments=arguments, seed=0)
            outcome = run(trial)
        except MissingKnowledge as problem:  # not every attack applies to every update; the message says why
            print(f"{attack:<12} not applicable: {problem}")
            continue
        psnr = outcome.record.psnr
        caption = "n/a" if psnr is None else f"{psnr:.1f} dB"
        rows.append((f"{attack}: {caption}", outcome.images))
        trials.append(trial)
        outcomes.append(outcome)
        found = outcome.reconstruction
        print(f"{attack:<12} {caption:>8}  {found.iterations} iterations, {found.seconds:.1f} s")
    write_sheet(given.out / "reconstruction.png", rows)
    write_outcomes(given.out, trials, outcomes)
    print(f"pictures: {given.out / 'reconstruction.png'}\nreport:   {write_report(given.out)}")


if __name__ == "__main__":
    main()
