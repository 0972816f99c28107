"""What a client's mods cost in Flower: a round of the example's app plain, recorded, and guarded by several attacks.

    python benchmarks/mods.py --rounds 5 --out mods.json

The mods are called as Flower calls them, without its servers and transport. CPU seconds of the process, one thread.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from undelta.files import write_bytes
from undelta.integrations.flower import GuardOwn, RecordOwn
from undelta.trials.record import versions

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "flower"))
from photo_federation.client_app import own_photos, train
from photo_federation.task import IMAGE, MODEL, small_cnn

TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1  # as Flower's runtimes set them
CONFIG = {"local-epochs": 4, "batch-size": 2, "learning-rate": 0.003, "momentum": 0.9, "server-round": 1}
HOW: dict[str, Any] = {"model": MODEL, "image": IMAGE, "truth": own_photos}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        mods: dict[str, Callable[..., Message] | None] = {
            "plain": None,
            "RecordOwn": RecordOwn(into=folder, **HOW),
            "GuardOwn, sme, 100 steps": GuardOwn(**HOW, attack="sme", arguments={"steps": 100}),
            "GuardOwn, strongest, 40 + 40 steps": GuardOwn(**HOW, arguments={"steps": 40, "rollout_steps": 40}),
            "GuardOwn, strongest, 200 + 100 steps": GuardOwn(**HOW, arguments={"steps": 200, "rollout_steps": 100}),
        }
        cells = [{"mod": name, **measure(mod, options.rounds)} for name, mod in mods.items()]
    content = {"versions": versions(), "rounds": options.rounds, "photographs": 4, "cells": cells}
    write_bytes(options.out, json.dumps(content, indent=1).encode())


def measure(mod: Callable[..., Message] | None, rounds: int) -> dict[str, Any]:
    context = Context(run_id=1, node_id=1, node_config={"partition-id": 0}, state=RecordDict(), run_config={})
    torch.manual_seed(0)
    state = small_cnn().state_dict()
    seconds, held = [], 0
    for _ in range(rounds + 1):  # the first one also imports and compiles
        content = RecordDict({"arrays": ArrayRecord(dict(state)), "config": ConfigRecord(dict(CONFIG))})
        message = Message(content, 1, "train")
        start = time.process_time()
        reply = functools.partial(mod, call_next=train)(message, context) if mod else train(message, context)
        seconds.append(time.process_time() - start)
        held += reply.has_error()
    result = {"median_cpu_seconds": round(statistics.median(seconds[1:]), 3), "first_cpu_seconds": round(seconds[0], 3)}
    print(result, flush=True)
    return {**result, "kept_back": f"{held} of {rounds + 1}"}


if __name__ == "__main__":
    main()
