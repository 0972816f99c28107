"""Files of layer weights: what `undelta tune` writes and `undelta attack --weights` reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from undelta.errors import ConfigError
from undelta.trials.config import load_weights, make_attack

Q = "[q]\nconv = 2\nnorm = 1.0\nlinear = 3.5\nenhanced = 4.0\np_mean = 0.1\np_var = 0.2\n"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "weights.toml"
    path.write_text(text)
    return path


def test_weights_become_settings_of_their_attack(tmp_path: Path) -> None:
    attack, settings = load_weights(written(tmp_path, f'attack = "awa"\nposition = 0.5\ntv = 0.001\n{Q}'))
    assert attack == "awa"
    assert (settings["position"], settings["tv"], settings["q"]["linear"]) == (0.5, 0.001, 3.5)
    assert "bn" not in settings
    assert make_attack(attack, {**settings, "steps": 3}).steps == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (Q + "convv = 3\n", "unknown key 'convv'; did you mean 'conv'"),
        ("qq = 1\n" + Q, "unknown key 'qq'"),
        ("position = 0.5\n", "missing q"),
        (Q.replace("conv = 2", "conv = -2"), "expected a weight conv > 0"),
        (Q.replace("conv = 2", 'conv = "two"'), "conv: expected a number"),
        ('attack = "nobody"\n' + Q, "unknown attack 'nobody'"),
        ("[q", "not valid TOML"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load_weights(written(tmp_path, text))


def test_an_attack_without_layer_weights_cannot_take_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="attack sme has no setting 'q'; use --attack awa"):
        load_weights(written(tmp_path, Q), attack="sme")


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent: No such file"):
        load_weights(tmp_path / "absent")
