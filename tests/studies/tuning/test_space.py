"""The box: the paper's ranges by default, and only what can matter for the model at hand."""

from __future__ import annotations

from typing import Any

import pytest

from undelta.attacker.attacks import awa
from undelta.attacker.weights import Q
from undelta.client.disclose import disclose
from undelta.client.scenario import Scenario
from undelta.errors import ConfigError
from undelta.observation import Observation
from undelta.observation.withhold import only_layers
from undelta.schema import parse
from undelta.studies.tuning.space import PAPER, WIDE, choose_space, settings_of


def test_the_default_box_is_the_papers() -> None:
    """AWA tab_search_ranges_BO, with the paper's names for the fields."""
    papers = {"conv": "q_cv", "norm": "q_bn", "linear": "q_fc", "enhanced": "q_en"}
    found = {papers.get(name, name): (side.low, side.high, side.log) for name, side in PAPER.items()}
    weights = dict.fromkeys(("q_cv", "q_bn", "q_fc", "q_en"), (1, 1000, False))
    assert found == {**weights, "p_mean": (0, 0.5, False), "p_var": (0, 0.5, False)}


def test_the_wide_box_lets_ramps_decrease_and_moves_the_rest() -> None:
    for kind in ("conv", "norm", "linear", "other", "enhanced"):
        assert (WIDE[kind].low, WIDE[kind].high, WIDE[kind].log) == (1e-3, 1e3, True)
    assert {"position", "tv", "bn"} < set(WIDE)


def seen(model: str, **arguments: Any) -> Observation:
    scenario = Scenario(
        data="faces", image_size=16, num_samples=2, model=model, model_arguments=arguments, epochs=1, batches=1
    )
    return disclose(scenario.draw(0), scenario)


ENHANCEMENT = ("enhanced", "p_mean", "p_var")


@pytest.mark.parametrize(
    ("model", "arguments", "paper", "wide"),
    [
        ("cnn", {"width": 4, "hidden": 8}, ("conv", "linear"), ("position", "tv")),
        ("mlp", {"hidden": [8]}, ("linear",), ("position", "tv")),
        ("resnet8", {"width": 4}, ("conv", "norm", "linear"), ("position", "tv", "bn")),
        ("resnet8", {"width": 4, "norm": "group"}, ("conv", "norm", "linear"), ("position", "tv")),
    ],
)
def test_only_the_kinds_of_layers_that_a_model_has_are_searched(
    model: str, arguments: dict[str, Any], paper: tuple[str, ...], wide: tuple[str, ...]
) -> None:
    observation = seen(model, **arguments)
    assert tuple(choose_space("paper", observation, "awa", {})) == (*paper, *ENHANCEMENT)
    assert tuple(choose_space("wide", observation, "awa", {})) == (*paper, *ENHANCEMENT, *wide)


def test_tokens_of_a_transformer_are_searched_in_the_wide_box_only() -> None:
    observation = seen("vit", patch=8, width=16, depth=1, heads=2)
    assert "other" in tuple(choose_space("wide", observation, "awa", {}))
    assert "other" not in tuple(choose_space("paper", observation, "awa", {}))


def test_layers_that_were_not_received_are_not_searched(observation: Observation) -> None:
    layer = next(name for name in observation.received if "weight" in name).removesuffix(".weight")
    part = only_layers(observation, [layer])
    assert "linear" not in tuple(choose_space("paper", part, "awa", {}))
    assert "conv" in tuple(choose_space("paper", part, "awa", {}))


def test_the_linear_form_has_nothing_to_enhance(observation: Observation) -> None:
    assert tuple(choose_space("paper", observation, "awa", {"form": "linear"})) == ("conv", "linear")


@pytest.mark.parametrize(
    ("box", "attack", "arguments", "complaint"),
    [
        ("papr", "awa", {}, "did you mean 'paper'"),
        ("paper", "awaa", {}, "did you mean 'awa'"),
        ("paper", "sme", {}, "sme has no layer weights Q to tune; choose from awa"),
        ("paper", "awa", {"form": "approximation"}, "weighs no layers"),
        ("paper", "awa", {"q": {}}, "--set q: --space paper tunes it"),
        ("wide", "awa", {"tv": 0.1}, "--set tv: --space wide tunes it"),
    ],
)
def test_what_cannot_be_tuned_is_refused(
    observation: Observation, box: str, attack: str, arguments: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        choose_space(box, observation, attack, arguments)


def test_what_the_box_does_not_tune_may_be_set(observation: Observation) -> None:
    assert choose_space("paper", observation, "awa", {"tv": 0.1, "signed": True})


def test_a_point_becomes_settings_that_the_attack_takes() -> None:
    settings = settings_of({"conv": 2.0, "enhanced": 3.0, "p_mean": 0.1, "p_var": 0.2, "position": 0.5})
    q = parse(Q, settings.pop("q"), where="q", error=ConfigError)
    assert (q.conv, q.norm, q.linear, q.other, q.enhanced, q.p_mean, q.p_var) == (2.0, 1.0, 1.0, 1.0, 3.0, 0.1, 0.2)
    assert settings == {"position": 0.5}
    assert awa(q=q, **settings).steps
