"""One optimization, from its start or its last checkpoint to its result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from undelta.attacker.attack import Run
from undelta.attacker.descent import Descent
from undelta.attacker.reconstruction import Iterate, Moment, Reconstruction, Status
from undelta.engine import ranks
from undelta.errors import ConfigError
from undelta.observation import Observation

RECORD_EVERY = 10  # iterations between two points of the history
ITERATES = 20  # pictures of a phase on its way
ITERATE_BYTES = 2**26  # and no more memory than this for all of them


def optimize(
    descents: Sequence[Descent], run: Run, *, before_step: Callable[[], None] = lambda: None
) -> Reconstruction:
    """Take all steps of one descent, or of several side by side; the smallest mismatch wins."""
    steps = descents[0].method.steps
    shown = _shown(steps, descents[0].observation)
    history, iterates, iteration, began = list[Moment](), list[Iterate](), 0, time.perf_counter()
    if saved := run.state():
        try:
            for descent, values in zip(descents, saved["descents"], strict=True):
                descent.load(values)
            history, iterates, iteration = list(saved["history"]), list(saved["iterates"]), int(saved["iteration"])
            began -= saved["elapsed"]
        except (LookupError, TypeError, ValueError, RuntimeError, AttributeError) as problem:
            raise ConfigError(
                f"the checkpoint does not fit this attack ({problem}); delete it to start over"
            ) from problem
    status: Status = "completed"

    def elapsed() -> float:
        return time.perf_counter() - began

    def lead() -> Descent:
        return min(descents, key=lambda descent: descent.mismatch)

    def state() -> dict[str, Any]:
        return {
            "descents": [descent.state() for descent in descents],
            "history": [*history],
            "iterates": [*iterates],
            "iteration": iteration,
            "elapsed": elapsed(),
        }

    try:
        while iteration < steps:
            record = iteration % RECORD_EVERY == 0
            if iteration in shown:
                iterates.append(Iterate(iteration, elapsed(), lead().picture()))
            before_step()
            sound = [descent.step(iteration, record=record) for descent in descents]
            if not all(sound):
                status = "diverged"
                break
            if record:
                history.append(Moment(iteration, elapsed(), lead().mismatch, lead().loss))
            iteration += 1
            if record:
                run.tell(history[-1], steps)
            run.save(state)
    except KeyboardInterrupt:
        if ranks.shared():  # the others may be elsewhere, so there is no common result
            raise
        # The step under way may be half done, so no checkpoint now; a resumed run repeats it from the last one.
        status = "interrupted"
    seconds = elapsed()
    results = [descent.result(status, iteration, seconds, history) for descent in descents]
    if status == "interrupted":  # also where the images were astray by then: nothing more is to run
        results = [replace(result, status=status) for result in results]
    result = replace(min(results, key=lambda result: result.rank), iterates=tuple(iterates))
    if status != "interrupted":
        run.finish(result)
    return result


def _shown(steps: int, observation: Observation) -> set[int]:
    """The iterations of which a picture is kept: many early ones, where most happens."""
    size = observation.num_samples * math.prod(observation.image.shape)
    count = min(ITERATES, ITERATE_BYTES // size)
    return {round(steps * (index / count) ** 2) for index in range(count)}
