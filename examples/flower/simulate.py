"""Run the app in Flower's simulation, and leave nothing running behind.

    python examples/flower/simulate.py --out photo-federation

It does what `flwr run examples/flower` does, with a SuperLink of its own that ends with it.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

APP = Path(__file__).resolve().parent
CLIENTS = 2
START_SECONDS = 120.0


@contextmanager
def superlink(home: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """Flower's server for simulations, under the name "here" in the configuration of this home."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (home / "config.toml").write_text(f'[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n')
    command = ["flower-superlink", "--insecure", "--simulation", "--port", str(port)]
    command += ["--disable-runtime-dependency-installation", "--log-file", str(home / "superlink.log")]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + START_SECONDS
        while not answers(port):
            if process.poll() is not None or time.monotonic() > end:
                sys.exit(f"Flower's SuperLink did not start:\n{(home / 'superlink.log').read_text()}")
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        process.wait()


def answers(port: int) -> bool:
    """Whether a server is there."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            return True
    except OSError:
        return False


def main() -> None:
    """Run the federation and say where the updates are."""
    options = argparse.ArgumentParser(description="Two clients, four photographs each, two rounds.")
    options.add_argument("--out", type=Path, default=Path("photo-federation"))
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
            "FLWR_HOME": folder,
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PHOTO_FEDERATION_OUT": str(given.out.resolve()),
        }
        with superlink(Path(folder), environment):
            simulation = f"num-supernodes={CLIENTS} client-resources-num-cpus=1"
            command = ["flwr", "run", str(APP), "here", "--stream", "--federation-config", simulation]
            subprocess.run(command, env=environment, check=True)
    for path in sorted(given.out.glob("*/*.safetensors")):
        print(path)


if __name__ == "__main__":
    main()
