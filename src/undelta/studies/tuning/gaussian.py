"""A Gaussian process with the paper's Gaussian kernel (AWA eq_GP_prior to eq_argmax_EI), for whoever wants that kernel.

Optuna's process has a Matérn-5/2 kernel and offers no other. This one is scikit-learn's, with a length scale for each
side of the search space; the next point is where the expected improvement is largest.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from optuna.distributions import FloatDistribution
from optuna.trial import FrozenTrial
from scipy.optimize import minimize
from scipy.stats import norm

from undelta.errors import ConfigError
from undelta.studies.tuning.space import Space

CANDIDATES = 1024  # points at which the expected improvement is looked at
POLISHED = 5  # of which so many are starts of a search
LEAST_DEVIATION = 1e-12

Array = npt.NDArray[np.float64]


def expected_improvement(mean: Array, deviation: Array, least: float) -> Array:
    """(f_min − μ) Φ((f_min − μ)/σ) + σ φ((f_min − μ)/σ) (AWA eq_EI)."""
    gain = least - mean
    ratio = gain / np.maximum(deviation, LEAST_DEVIATION)
    improvement: Array = gain * norm.cdf(ratio) + deviation * norm.pdf(ratio)
    return improvement


def propose(trials: Sequence[FrozenTrial], space: Space, *, minimized: bool, seed: int) -> dict[str, float]:
    """The point of the largest expected improvement after these results; a trial under way counts as an average one."""
    try:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
    except ImportError as error:
        raise ConfigError('the Gaussian kernel comes with scikit-learn: pip install "undelta[tune]"') from error
    known = [trial.value for trial in trials if trial.value is not None]
    sign, average = 1 if minimized else -1, float(np.mean(known))
    values = sign * np.array([average if trial.value is None else trial.value for trial in trials])
    places = np.array([[_to_unit(side, trial.params[name]) for name, side in space.items()] for trial in trials])
    kernel = ConstantKernel(1.0, (1e-3, 1e3)) * RBF([0.5] * len(space), (0.02, 20.0)) + WhiteKernel(1e-6, (1e-9, 0.1))
    process = GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=2, random_state=seed)
    with warnings.catch_warnings():  # a length scale at the end of its range is no fault
        warnings.simplefilter("ignore", ConvergenceWarning)
        process.fit(places, values)

    def improvement(points: Array) -> Array:
        mean, deviation = process.predict(np.atleast_2d(points), return_std=True)
        return expected_improvement(mean, deviation, float(values.min()))

    candidates = np.random.default_rng(seed).random((CANDIDATES, len(space)))
    starts = candidates[np.argsort(improvement(candidates))[-POLISHED:]]
    scale = max(float(improvement(starts).max()), 1e-300)  # else the search would see a flat function
    found = [
        minimize(lambda point: -float(improvement(point)[0]) / scale, start, bounds=[(0.0, 1.0)] * len(space))
        for start in starts
    ]
    best = min(found, key=lambda result: float(result.fun)).x
    return {name: _from_unit(side, float(place)) for (name, side), place in zip(space.items(), best, strict=True)}


def _to_unit(side: FloatDistribution, value: float) -> float:
    low, high, at = (math.log(one) if side.log else one for one in (side.low, side.high, value))
    return (at - low) / (high - low)


def _from_unit(side: FloatDistribution, place: float) -> float:
    low, high = (math.log(one) if side.log else one for one in (side.low, side.high))
    at = low + place * (high - low)
    return min(max(math.exp(at) if side.log else at, side.low), side.high)
