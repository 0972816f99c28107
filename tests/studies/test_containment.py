"""`undelta contains`: pictures on disk against a recorded update."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image
from torch import Tensor
from typer.testing import CliRunner

from undelta.cli import app
from undelta.client.disclose import disclose
from undelta.client.scenario import Scenario
from undelta.errors import DataError
from undelta.observation.file import save_observation
from undelta.studies.containment import contains_job

SCENARIO = Scenario(data="patches", image_size=16, num_samples=3, epochs=4, batches=1, grant_labels=False)


def save(images: Tensor, folder: Path, name: str) -> None:
    folder.mkdir(exist_ok=True)
    for index, image in enumerate(images):
        pixels = (image * 255).round().byte().permute(1, 2, 0).numpy()
        Image.fromarray(pixels).save(folder / f"{name}{index}.png")


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    private, others = SCENARIO.draw(0), SCENARIO.draw_held_out(0, 22)
    save_observation(disclose(private, SCENARIO, seed=0), tmp_path / "seen.safetensors")
    save(private.images, tmp_path / "candidates", "mine")
    save(others.images[:2], tmp_path / "candidates", "other")
    save(others.images[2:], tmp_path / "reference", "public")
    return tmp_path


def test_pictures_that_took_part_are_found(recorded: Path) -> None:
    out = recorded / "found.json"
    found = contains_job(
        recorded / "seen.safetensors", recorded / "candidates", reference=str(recorded / "reference"), out=out
    )
    assert [one.name for one in found] == ["mine0.png", "mine1.png", "mine2.png", "other0.png", "other1.png"]
    inside, outside = found[:3], found[3:]
    assert all(one.containment.p_value == pytest.approx(1 / 21) for one in inside)
    assert max(one.containment.outside for one in inside) < 0.1 * min(one.containment.outside for one in outside)
    written = json.loads(out.read_text())
    assert written["references"] == 20
    assert [row["image"] for row in written["images"]] == [one.name for one in found]


def test_one_picture_is_enough_and_grey_references_are_taken(recorded: Path) -> None:
    words = ["contains", str(recorded / "seen.safetensors"), "--images", str(recorded / "candidates" / "mine1.png")]
    result = CliRunner().invoke(app, [*words, "--reference", "faces"])
    assert result.exit_code == 0, result.output
    assert "mine1.png" in result.stdout
    assert "0.005" in result.stdout  # 1 of 201


def test_a_folder_without_pictures_is_refused(recorded: Path) -> None:
    (recorded / "empty").mkdir()
    with pytest.raises(DataError, match="no pictures"):
        contains_job(recorded / "seen.safetensors", recorded / "empty")
