"""The engine: gradients of mini-batches, and the way back through them. Both sides of the boundary may use it."""

from undelta.engine.moments import MomentPrior, Moments
from undelta.engine.network import MEMORY, Known, Network
from undelta.engine.rollout import Pulled, Rollout, rollout
from undelta.engine.room import Room, Step

__all__ = ["MEMORY", "Known", "MomentPrior", "Moments", "Network", "Pulled", "Rollout", "Room", "Step", "rollout"]
