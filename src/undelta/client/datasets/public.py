"""Public photographs that no client here has: what anybody knows of natural images."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from undelta.client.datasets.folders import read_picture
from undelta.errors import DataError

PHOTOGRAPHS = ("china.jpg", "flower.jpg")
GRIDS = (1, 2, 3)  # sides of a photograph over those of a crop


def public_photographs(side: int) -> Tensor:
    """70 overlapping crops, at three scales, of the two photographs of scikit-learn, (70, 3, side, side) in [0, 1]."""
    found = find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise DataError('public photographs come with scikit-learn: pip install "undelta[digits]", or give --public.')
    folder = Path(found.submodule_search_locations[0], "datasets", "images")
    crops = []
    for name in PHOTOGRAPHS:
        for grid in GRIDS:
            whole = read_picture(folder / name, grid * side)
            places = torch.linspace(0, (grid - 1) * side, 2 * grid - 1).long().tolist()
            crops += [whole[:, row : row + side, column : column + side] for row in places for column in places]
    return torch.stack(crops)
