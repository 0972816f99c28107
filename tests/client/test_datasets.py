"""Sources of private images: each test writes the few files it needs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import EpsImagePlugin, Image
from sklearn.datasets import load_digits

from undelta.client.datasets import SOURCES, bundled, folders, open_dataset, origin_of, pick
from undelta.errors import DataError

pytestmark = pytest.mark.usefixtures("bounded_memory")

SEED = 3


def random_images(*shape: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(SEED).integers(0, 256, shape, dtype=np.uint8)


def write_picture(path: Path, pixels: npt.NDArray[np.uint8] | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(random_images(6, 6, 3) if pixels is None else pixels).save(path)


@pytest.mark.parametrize("name", SOURCES)
def test_a_named_source_keeps_its_promises(name: str) -> None:
    data = open_dataset(name)
    images = data.draw([0, len(data) - 1], 20)
    assert images.shape == (2, data.channels, 20, 20)
    assert images.dtype == torch.float32
    assert 0 <= images.min() < images.max() <= 1
    assert data.labels.dtype == torch.int64
    assert set(data.labels.tolist()) == set(range(data.classes))
    assert len(data.mean) == len(data.std) == data.channels


def test_photos_are_eight_classes_of_color_pictures() -> None:
    data = open_dataset("photos")
    assert (len(data), data.classes, data.channels, data.native_size) == (8, 8, 3, None)
    rocket = data.draw([3], 32)[0]
    assert rocket.std(dim=0).mean() > 0.01, "color must survive"


def test_patches_are_the_photographs_cut_into_a_grid() -> None:
    data, photos = open_dataset("patches"), open_dataset("photos")
    assert (len(data), data.classes, data.channels, data.native_size) == (288, 8, 3, None)
    cat = data.draw(torch.where(data.labels == 1)[0], 8)  # (36, 3, 8, 8), row by row
    rows = [torch.cat(list(cat[6 * row : 6 * row + 6]), dim=2) for row in range(6)]
    assert torch.equal(torch.cat(rows, dim=1), photos.draw([1], 48)[0])
    first = data.draw([36], 8)
    first.zero_()  # what a caller does to its images stays its own affair
    assert torch.equal(data.draw([36], 8)[0], cat[0])


def test_sources_have_an_origin_in_common_only_if_they_share_pictures(tmp_path: Path) -> None:
    assert origin_of("patches") == origin_of("photos")
    assert len({origin_of(name) for name in SOURCES}) == len(SOURCES) - 1
    assert origin_of("./photos") != origin_of("photos")  # a folder of that name
    assert origin_of(f"{tmp_path}/a/..") == origin_of(str(tmp_path))
    assert origin_of("~nobody-of-that-name/a") == "~nobody-of-that-name/a"


def test_faces_come_before_background_and_are_labeled_1() -> None:
    data = open_dataset("faces")
    assert data.labels.tolist() == [1] * 100 + [0] * 100
    assert data.native_size == 25
    images = data.draw(range(200), 25)
    # Faces have edges all over; patches of background are mostly smooth.
    edges = images.diff(dim=-1).abs().mean(dim=(1, 2, 3))
    assert edges[:100].median() > 1.5 * edges[100:].median()


def test_digits_without_scikit_learn_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r'pip install "undelta\[digits\]"'):
        SOURCES["digits"]()


def test_digits_are_those_of_scikit_learn() -> None:
    data, theirs = SOURCES["digits"](), load_digits()
    assert torch.equal(data.labels, torch.from_numpy(theirs.target))
    images = torch.stack([data.draw([index], 8)[0] for index in range(0, 1797, 97)])
    expected = torch.from_numpy(theirs.images[::97]).float()[:, None] / 16
    torch.testing.assert_close(images, expected, rtol=0, atol=0.51 / 255)


def test_pick_draws_without_repeats_and_follows_its_generator() -> None:
    data = open_dataset("photos")
    first, again = (pick(data, 8, torch.Generator().manual_seed(SEED)) for _ in range(2))
    assert sorted(first.tolist()) == list(range(8))
    assert torch.equal(first, again)


def test_pick_refuses_more_pictures_than_there_are() -> None:
    with pytest.raises(DataError, match="photos has 8 pictures, but 9 were asked for; "):
        pick(open_dataset("photos"), 9, torch.Generator())
    with pytest.raises(DataError, match="num_samples >= 1"):
        pick(open_dataset("photos"), 0, torch.Generator())


def test_draw_refuses_indices_and_sizes_that_make_no_sense() -> None:
    data = open_dataset("faces")
    assert data.draw([], 25).shape == (0, 1, 25, 25)
    for indices, size in ([200], 25), ([-1], 25), ([0], 0):
        with pytest.raises(DataError, match="got "):
            data.draw(indices, size)


@pytest.mark.parametrize("source", ["nowhere", "", "~no-such-user/x", "x" * 5000, "a\0b"])
def test_an_unknown_source_is_one_line_of_error(source: str) -> None:
    with pytest.raises(DataError) as caught:
        open_dataset(source)
    assert "\n" not in str(caught.value)


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="photos, patches, faces, digits"):
        open_dataset("imagenet")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(DataError, match=r"neither a folder nor an \.npz"):
        open_dataset(str(tmp_path / "notes.txt"))


def test_subfolders_are_classes_in_sorted_order(tmp_path: Path) -> None:
    for name in ("dog/b.png", "dog/a.png", "cat/deep/c.png", "cat/.hidden.png", "cat/notes.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_picture(path) if path.suffix == ".png" else path.write_text("x")
    data = open_dataset(str(tmp_path))
    assert data.labels.tolist() == [0, 1, 1]
    assert (data.classes, data.channels, data.name) == (2, 3, tmp_path.name)
    assert torch.equal(data.draw([0], 6)[0], torch.from_numpy(random_images(6, 6, 3)).permute(2, 0, 1) / 255)


def test_numbers_in_front_of_flat_names_are_classes(tmp_path: Path) -> None:
    for name in ("0966_red_wine.png", "0007-hen.png"):
        write_picture(tmp_path / name)
    data = open_dataset(str(tmp_path))
    assert (data.labels.tolist(), data.classes) == ([7, 966], 967)


@pytest.mark.parametrize("name", ["holiday.png", "20240131_holiday.png", "100000_x.png"])
def test_other_flat_pictures_are_a_class_each(tmp_path: Path, name: str) -> None:
    for path in (tmp_path / name, tmp_path / "0007-hen.png"):
        write_picture(path)
    data = open_dataset(str(tmp_path))
    assert (data.labels.tolist(), data.classes) == ([0, 1], 2)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a.png", "dog/b.png"], "beside and inside"),
        (["train/dog/b.png", "val/dog/b.png"], "give one of train, val"),
        ([], "found no pictures"),
    ],
)
def test_an_ambiguous_or_empty_folder_is_refused(tmp_path: Path, names: list[str], message: str) -> None:
    for name in names:
        write_picture(tmp_path / name)
    with pytest.raises(DataError, match=message):
        open_dataset(str(tmp_path))


def test_pictures_are_cropped_at_the_center_and_turned_upright(tmp_path: Path) -> None:
    pixels = np.zeros((4, 8, 3), dtype=np.uint8)
    pixels[:, 2:6] = [255, 0, 0]
    pixels[:2, 2:6] = [0, 255, 0]  # green above red in the central square
    write_picture(tmp_path / "a.png", pixels)
    exif = Image.Exif()
    exif[0x0112] = 3  # stored upside down
    Image.fromarray(pixels).save(tmp_path / "b.png", exif=exif)
    upright, turned = open_dataset(str(tmp_path)).draw([0, 1], 4)
    assert upright[:, 0, 0].tolist() == [0, 1, 0]
    assert upright[:, 3, 3].tolist() == [1, 0, 0]
    assert torch.equal(turned, upright.flip(1, 2))


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "CMYK", "P", "1", "I;16"])
def test_every_mode_of_picture_becomes_rgb(tmp_path: Path, mode: str) -> None:
    grey = Image.new("L", (5, 5), 255)
    image = Image.fromarray(np.full((5, 5), 255 << 8, np.uint16)) if mode == "I;16" else grey.convert(mode)
    image.save(tmp_path / ("a.tif" if mode == "CMYK" else "a.png"))
    pixels = open_dataset(str(tmp_path)).draw([0], 5)
    assert torch.allclose(pixels, torch.ones(1, 3, 5, 5))


def test_a_16_bit_grey_keeps_its_range(tmp_path: Path) -> None:
    Image.fromarray(np.full((5, 5), 128 << 8, np.uint16)).save(tmp_path / "a.png")
    assert open_dataset(str(tmp_path)).draw([0], 5).mean() == pytest.approx(128 / 255)


def test_a_damaged_picture_is_named(tmp_path: Path) -> None:
    write_picture(tmp_path / "a.png", random_images(64, 64, 3))
    whole = (tmp_path / "a.png").read_bytes()
    for content in (b"", b"text", whole[:20], whole[: len(whole) // 2]):
        (tmp_path / "a.png").write_bytes(content)
        with pytest.raises(DataError, match=r"a\.png"):
            open_dataset(str(tmp_path)).draw([0], 8)


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\n4 4 scale\nshowpage\n%%EOF\n"


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".tiff"])
def test_a_picture_of_a_kind_that_starts_programs_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    def started(*words: object, **options: object) -> None:
        pytest.fail("a program was started")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", started)
    (tmp_path / f"a{suffix}").write_bytes(EPS)
    with pytest.raises(DataError, match="cannot identify"):
        open_dataset(str(tmp_path)).draw([0], 4)


@pytest.mark.parametrize("kind", ["PPM", "TGA", "ICO", "PCX", "SGI", "DDS", "JPEG2000", "AVIF"])
def test_only_the_kinds_of_pictures_that_are_meant_are_decoded(tmp_path: Path, kind: str) -> None:
    Image.init()
    if kind not in Image.SAVE:
        pytest.skip(f"this Pillow does not write {kind}")
    Image.new("RGB", (32, 32)).save(tmp_path / "a.png", format=kind)
    with pytest.raises(DataError, match="cannot identify"):
        open_dataset(str(tmp_path)).draw([0], 4)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF"])
def test_a_picture_is_known_by_its_content(tmp_path: Path, kind: str) -> None:
    Image.new("RGB", (8, 8), "white").save(tmp_path / "a.png", format=kind)
    assert open_dataset(str(tmp_path)).draw([0], 4).min() > 0.98


def test_a_whole_disk_is_not_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="'/' is the whole disk"):
        open_dataset("/")
    monkeypatch.setattr(folders, "MOST_FILES", 2)
    for name in ("cat/a.png", "cat/b.png", "cat/c.png"):
        write_picture(tmp_path / name)
    with pytest.raises(DataError, match="holds more than 2 files"):
        open_dataset(str(tmp_path))


def test_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_picture(tmp_path / "a.png", random_images(12, 12, 3))
    for limit in (100, 10):  # Pillow warns above its limit and raises above twice its limit
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with pytest.raises(DataError, match=rf"a\.png' has more than {limit} pixels"):
            open_dataset(str(tmp_path)).draw([0], 8)
