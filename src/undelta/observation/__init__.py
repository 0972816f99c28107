"""The boundary: all that the server sees of one client."""

from undelta.observation.checks import FLOATS
from undelta.observation.observation import Hyperparameter, Observation
from undelta.observation.rounds import together
from undelta.observation.specs import MOST_PIXELS, Architecture, Builder, ImageSpec

__all__ = [
    "FLOATS",
    "MOST_PIXELS",
    "Architecture",
    "Builder",
    "Hyperparameter",
    "ImageSpec",
    "Observation",
    "together",
]
