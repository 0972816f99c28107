"""The boundary: all that the server sees of one client's round."""

from undelta.observation.observation import (
    FLOATS,
    MOST_PIXELS,
    Architecture,
    Builder,
    Hyperparameter,
    ImageSpec,
    Observation,
)

__all__ = ["FLOATS", "MOST_PIXELS", "Architecture", "Builder", "Hyperparameter", "ImageSpec", "Observation"]
