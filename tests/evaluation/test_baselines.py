"""Baselines: guesses without any update, and what an attack makes of noise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from undelta.client.disclose import disclose
from undelta.client.scenario import Scenario
from undelta.evaluation.baselines import NATURAL, baselines, best_guess, flat_guesses
from undelta.observation.withhold import pure_noise
from undelta.seeding import stream
from undelta.trials import noise as noise_module
from undelta.trials.config import make_attack
from undelta.trials.noise import noise_baseline
from undelta.trials.trial import Trial, run

SMALL = Scenario(data="digits", num_samples=2, model_arguments={"width": 4, "hidden": 16}, epochs=2, batches=1)


def test_the_mean_color_is_each_images_own_and_the_public_one_is_nobodys() -> None:
    truth = torch.stack([torch.full((3, 12, 12), 0.2), torch.full((3, 12, 12), 0.9)])
    guesses = flat_guesses(truth)
    assert torch.allclose(guesses["mean color"], truth)
    assert guesses["public mean"][0, :, 0, 0].tolist() == pytest.approx(NATURAL)
    assert torch.equal(guesses["public mean"][0], guesses["public mean"][1])
    found = baselines(truth)
    assert found["mean color"].psnr is not None
    assert found["mean color"].psnr > 90
    assert found["public mean"].psnr is not None
    assert found["public mean"].psnr < 15
    assert best_guess(found, 1).psnr == found["mean color"].images[1].psnr
    assert flat_guesses(truth[:, :1])["public mean"].shape == (2, 1, 12, 12)


def test_noise_is_as_long_as_the_update_and_holds_nothing_of_it() -> None:
    observation = disclose(SMALL.draw(0), SMALL, seed=0)
    noise = pure_noise(observation, stream("test"))
    for name, value in noise.received.items():
        sent, heard = (one - observation.initial[name] for one in (value, observation.received[name]))
        assert sent.norm().item() == pytest.approx(heard.norm().item(), rel=1e-3)
        assert not torch.allclose(sent, heard)


def test_an_attack_on_noise_is_one_baseline_more_and_leaves_the_result_alone() -> None:
    trial = Trial(scenario=SMALL, attack="awa", arguments={"steps": 30})
    plain, noisy = (
        run(trial).record,
        run(Trial(scenario=SMALL, attack="awa", arguments={"steps": 30}, noise=True)).record,
    )
    assert trial.key == noisy.key
    assert list(plain.baselines) == ["mean color", "public mean"]
    assert list(noisy.baselines) == ["mean color", "public mean", "pure noise"]
    assert plain.images == noisy.images
    assert noisy.gain is not None
    assert noisy.psnr is not None
    assert noisy.gain == pytest.approx(noisy.psnr - max(one.psnr or 0.0 for one in noisy.baselines.values()))


def test_an_attack_that_does_not_apply_to_noise_has_no_such_baseline() -> None:
    observation, private = disclose(SMALL.draw(0), SMALL, seed=0), SMALL.draw(0)
    assert noise_baseline(observation, private, attack="idlg", arguments={}, seed=0) is None


def test_an_interrupted_attack_on_noise_interrupts_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(attack: str, arguments: Any) -> Any:
        return lambda noise, *, seed: replace(make_attack(attack, arguments)(noise, seed=seed), status="interrupted")

    monkeypatch.setattr(noise_module, "make_attack", stopped)
    with pytest.raises(KeyboardInterrupt):
        run(Trial(scenario=SMALL, attack="awa", arguments={"steps": 2}, noise=True))


def test_an_attack_that_fails_on_noise_leaves_the_finished_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(attack: str, arguments: Any) -> Any:
        raise RuntimeError("not enough memory")

    monkeypatch.setattr(noise_module, "make_attack", failing)
    found = run(Trial(scenario=SMALL, attack="awa", arguments={"steps": 2}, noise=True)).record
    assert found.status == "completed"
    assert list(found.baselines) == ["mean color", "public mean"]
