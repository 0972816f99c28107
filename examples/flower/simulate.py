"""Run the app in Flower's simulation from Python, without Flower's servers in the background.

    python examples/flower/simulate.py --out photo-federation

`flwr run examples/flower` runs the same app in Flower's own way.
"""

from __future__ import annotations

import argparse
import os
import tomllib
from pathlib import Path


def main() -> None:
    """Run the federation and say where the updates are."""
    options = argparse.ArgumentParser(description="Two clients, four photographs each, two rounds.")
    options.add_argument("--out", type=Path, default=Path("photo-federation"))
    given = options.parse_args()
    os.environ["PHOTO_FEDERATION_OUT"] = str(given.out.resolve())  # before the app is imported, here and in workers

    from flwr.app import Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation
    from photo_federation import client_app, server_app
    from photo_federation.task import CLIENTS

    config = tomllib.loads(Path(__file__).with_name("pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    server = ServerApp()

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        context.run_config.update(config)  # which `flwr run` would have done
        server_app.app(grid, context)

    run_simulation(server, client_app.app, CLIENTS, backend_config={"client_resources": {"num_cpus": 1}})
    for path in sorted(given.out.glob("*/*.safetensors")):
        print(path)


if __name__ == "__main__":
    main()
