"""The attacker's side: knows an Observation, nothing else. Its parts are reachable as ``undelta.priors`` and so on."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, submodules=["canvas", "distances", "labels", "optimizers", "paths", "priors", "replays", "weights"]
)
