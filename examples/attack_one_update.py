"""One update from end to end: simulate a client, save what the server sees, attack the file, score the result.

    python examples/attack_one_update.py --out one-update

The attack reads the file of the observation and nothing else; the truth is only needed for the score.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from undelta import Scenario, disclose, load_observation, save_observation, score, strongest, write_sheet


def main() -> None:
    """Run the example."""
    options = argparse.ArgumentParser(description="Simulate, save, attack and score one update.")
    options.add_argument("--data", default="photos", help="photos, faces, digits, a folder of pictures, ...")
    options.add_argument("--num-samples", type=int, default=8)
    options.add_argument("--epochs", type=int, default=5)
    options.add_argument("--steps", type=int, default=60, help="iterations of each of the attack's two phases")
    options.add_argument("--out", type=Path, default=Path("one-update"))
    given = options.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)

    # The client's side: private pictures, local training, and what leaves the client.
    scenario = Scenario(
        data=given.data,
        num_samples=given.num_samples,
        model="cnn",
        model_arguments={"width": 32},
        epochs=given.epochs,
        batches=2,
        learning_rate=0.004,
    )
    private = scenario.draw(seed=0)
    seen = given.out / "seen.safetensors"
    save_observation(disclose(private, scenario, seed=0), seen)

    # The server's side.
    attack = strongest(steps=given.steps, rollout_steps=given.steps)
    reconstruction = attack(load_observation(seen), seed=0)
    print(f"{reconstruction.status} after {reconstruction.iterations} iterations, {reconstruction.seconds:.0f} s")

    # Truth and guess meet here.
    result = score(reconstruction, private)
    print(f"PSNR {result.psnr:.1f} dB" if result.psnr is not None else "PSNR n/a: the attack diverged")
    print(f"recovered (20 dB or more): {result.fraction_recovered:.0%} of the images")
    rows = [("private", private.images), ("reconstructed", reconstruction.images[list(result.order)])]
    write_sheet(given.out / "reconstruction.png", rows)
    print(f"pictures: {given.out / 'reconstruction.png'}")


if __name__ == "__main__":
    main()
