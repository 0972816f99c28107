"""The engine: gradients of mini-batches, and the way back through them. Both sides of the boundary may use it."""

from undelta.engine.moments import MomentPrior, Moments
from undelta.engine.network import MEMORY, Network
from undelta.engine.rollout import Pulled, Rollout, Room, Step, rollout

__all__ = ["MEMORY", "MomentPrior", "Moments", "Network", "Pulled", "Rollout", "Room", "Step", "rollout"]
