"""A study in a directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from undelta.studies.tuning.proposals import Proposals
from undelta.studies.tuning.storage import open_storage
from undelta.studies.tuning.study import Slots

from .bowl import SIDES, OpenSlots


@pytest.fixture
def open_slots(tmp_path: Path) -> OpenSlots:
    """The places of a study; every call is another worker."""

    def opened(
        *,
        total: int,
        directory: Path = tmp_path,
        storage: str | None = None,
        seed: int = 0,
        random: int = 4,
        prune: bool = False,
        grace: int = 120,
        name: str = "bowl",
    ) -> Slots:
        return Slots(
            open_storage(storage, directory, heartbeat=1, grace=grace),
            Proposals(SIDES, seed=seed, random=random),
            name=name,
            direction="minimize",
            prune=prune,
            warmup=3,
            total=total,
            worker="test",
        )

    return opened
