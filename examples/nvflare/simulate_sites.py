"""Run two sites in NVFlare's simulator; undelta's filters record their updates, or keep them back.

    python examples/nvflare/simulate_sites.py --out photo-sites
    python examples/nvflare/simulate_sites.py --out photo-sites --guard

The simulator ignores the privacy policies of its clients, so the filters are added to the job here. In a real
federation they belong into each site's own local/privacy.json, which is also written here (photo-sites/privacy.json).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
FILTERS = "undelta.integrations.nvflare"


def arguments(out: Path, *, guard: bool) -> dict[str, object]:
    """What the filter of results is told."""
    from site_data import BATCH_SIZE, EPOCHS, IMAGE, LEARNING_RATE

    common = {
        "model": "site_data:SmallCNN",
        "image": {key: list(value) if isinstance(value, tuple) else value for key, value in vars(IMAGE).items()},
        "training": {"epochs": EPOCHS, "batch_size": BATCH_SIZE, "learning_rate": LEARNING_RATE},
    }
    return {**common, "attack": "sme", "arguments": {"steps": 100}} if guard else {**common, "into": str(out)}


def policy(name: str, given: dict[str, object]) -> dict[str, object]:
    """What a site's local/privacy.json says."""
    scope = {
        "name": "photographs",
        "task_data_filters": [{"path": f"{FILTERS}.KeepSent"}],
        "task_result_filters": [{"path": f"{FILTERS}.{name}", "args": given}],
    }
    return {"scopes": [scope], "default_scope": "photographs"}


def main() -> None:
    """Run the job and say where the updates are."""
    options = argparse.ArgumentParser(description="Two sites, four photographs each.")
    options.add_argument("--out", type=Path, default=Path("photo-sites"))
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--guard", action="store_true", help="Keep updates back instead of recording them.")
    given = options.parse_args()
    out = given.out.resolve()
    sys.path.insert(0, str(HERE))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])

    from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
    from nvflare.recipe import SimEnv
    from site_data import SmallCNN

    from undelta.integrations import nvflare as filters

    name = "GuardUpdate" if given.guard else "RecordUpdate"
    told = arguments(out / "recorded", guard=given.guard)
    out.mkdir(parents=True, exist_ok=True)
    (out / "privacy.json").write_text(json.dumps(policy(name, told), indent=2))
    recipe = FedAvgRecipe(
        name="photographs",
        model=SmallCNN(),
        min_clients=2,
        num_rounds=given.rounds,
        train_script=str(HERE / "site_training.py"),
    )
    recipe.add_client_input_filter(filters.KeepSent(), tasks=["train"])
    recipe.add_client_output_filter(getattr(filters, name)(**told), tasks=["train"])
    recipe.execute(SimEnv(num_clients=2, workspace_root=str(out / "simulation")))
    for path in sorted((out / "recorded").glob("*.safetensors")):
        print(path)


if __name__ == "__main__":
    main()
