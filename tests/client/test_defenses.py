"""What every defense promises, and that each computes what it says."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from undelta.attacker.attacks import strongest
from undelta.client.defenses import DEFENSES, OnUpdate, make_defenses
from undelta.client.defenses.defense import InTraining
from undelta.client.defenses.mixup import Mixup
from undelta.client.defenses.soteria import Soteria, last_linear
from undelta.client.disclose import disclose, disclose_with_secrets
from undelta.client.federation import federate, initial_model
from undelta.client.local import train
from undelta.client.private import Private
from undelta.client.scenario import Scenario
from undelta.errors import ConfigError
from undelta.observation import Observation
from undelta.observation.file import load_observation, save_observation
from undelta.training import LocalTraining
from undelta.updates import State, Update, difference, inner, parameters_of

Table = dict[str, Any]

STRONG: dict[str, Table] = {
    "clipping": {"norm": 0.01},
    "noise": {"scale": 0.01},
    "pruning": {"ratio": 0.8},
    "top_k": {"count": 7},
    "quantization": {"bits": 4},
    "withholding": {},
    "mixup": {"alpha": 1.0},
    "soteria": {"ratio": 0.5},
    "dp_sgd": {"noise_multiplier": 1.0},
    "pure_noise": {},
}
"""Every defense at a strength that shows."""

ZERO: dict[str, Table] = {
    "clipping": {"norm": 1e6},
    "noise": {"scale": 0.0},
    "pruning": {"ratio": 0.0},
    "top_k": {"count": 10**9},
    "quantization": {"bits": 32},
    "mixup": {"alpha": 0.0},
    "soteria": {"ratio": 0.0},
}
"""Every defense that can be turned down to nothing. DP-SGD sums in another order, so it comes near only (see there)."""

each_defense = pytest.mark.parametrize("name", DEFENSES)


def defended(scenario: Scenario, *tables: Table) -> Scenario:
    return replace(scenario, defenses=tables)


def strong(scenario: Scenario, name: str) -> Scenario:
    table = {"defense": name, **STRONG[name]}
    if name == "withholding":  # which needs statistics to withhold
        return replace(scenario, model="convnet", model_arguments={"width": 2}, batches=1, defenses=(table,))
    return defended(scenario, table)


def protect(name: str, update: Update, seed: int = 0, **settings: Any) -> Update:
    (defense,) = make_defenses([{"defense": name, **settings}])
    assert isinstance(defense, OnUpdate)
    return defense.protect(update, torch.Generator().manual_seed(seed))


def same(a: State, b: State) -> bool:
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


def norm(update: Update) -> float:
    return float(inner(update, update).sqrt())


@pytest.fixture
def update() -> Update:
    generator = torch.Generator().manual_seed(0)
    shapes = {"a.weight": (40, 30), "a.bias": (40,), "b.weight": (10, 40)}
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) * 0.1 for name, shape in shapes.items()}


# What all promise


def test_every_defense_is_tried_here() -> None:
    assert set(STRONG) == set(DEFENSES)


@each_defense
def test_equal_seeds_give_equal_updates_and_other_seeds_give_others(name: str, scenario: Scenario) -> None:
    scenario = strong(scenario, name)
    private = scenario.draw(0)
    first, second = disclose(private, scenario, seed=3), disclose(private, scenario, seed=3)
    assert same(first.received, second.received)
    assert not same(first.received, disclose(private, scenario, seed=4).received)


@each_defense
def test_a_defense_changes_what_the_server_receives_and_not_what_it_sent(name: str, scenario: Scenario) -> None:
    scenario = strong(scenario, name)
    plain = disclose(scenario.draw(0), replace(scenario, defenses=()))
    protected = disclose(scenario.draw(0), scenario)
    assert same(plain.initial, protected.initial)
    assert not same(plain.received, protected.received)


@pytest.mark.parametrize("name", ZERO)
def test_strength_zero_is_the_identity_bit_for_bit(name: str, scenario: Scenario) -> None:
    plain = disclose(scenario.draw(0), scenario)
    turned_down = disclose(scenario.draw(0), defended(scenario, {"defense": name, **ZERO[name]}))
    assert same(plain.received, turned_down.received)


@each_defense
def test_a_defended_observation_is_sound_and_can_be_attacked(name: str, scenario: Scenario, tmp_path: Any) -> None:
    scenario = strong(scenario, name)
    save_observation(disclose(scenario.draw(0), scenario), tmp_path / "seen")
    observation = load_observation(tmp_path / "seen")
    reconstruction = strongest(steps=2, rollout_steps=2)(observation)
    assert reconstruction.images.shape == scenario.draw(0).images.shape
    assert torch.isfinite(reconstruction.images).all()


@each_defense
def test_nothing_of_a_defense_but_its_effect_crosses_the_boundary(name: str, scenario: Scenario) -> None:
    """No field more, labels sorted, and the observation does not change with the private images afterwards."""
    scenario = strong(scenario, name)
    private = scenario.draw(0)
    plain = disclose(private, replace(scenario, defenses=()))
    observation, (run,) = disclose_with_secrets(private, scenario)
    assert set(vars(observation)) == set(vars(plain))
    assert (observation.training, observation.num_samples) == (plain.training, plain.num_samples)
    assert observation.labels is not None
    assert observation.labels.tolist() == sorted(private.labels.tolist())
    before = {key: value.clone() for key, value in observation.received.items()}
    private.images.zero_()
    assert same(before, observation.received)
    kept = {value.data_ptr() for value in (*run.state.values(), *run.orders)}
    assert not kept & {value.data_ptr() for value in observation.received.values()}


@each_defense
def test_a_defense_is_active_in_earlier_rounds_for_every_client(name: str, scenario: Scenario) -> None:
    scenario = replace(strong(scenario, name), rounds=1, clients=2, participants=2)
    clients, image = scenario.draw_all(0), scenario.image_spec()
    model = initial_model(scenario, image, seed=0, dtype=torch.float64)
    server = federate(scenario, clients, image, seed=0, dtype=torch.float64).state_dict()
    sent = [
        train(model, client, scenario.training, image, seed=("client", 0, "round", 0, k), defenses=scenario.protection)
        for k, client in enumerate(clients)
    ]
    for key, value in server.items():
        if key not in sent[0].state:  # withheld: the server keeps its own
            assert torch.equal(value, model.state_dict()[key])
        elif value.is_floating_point():
            torch.testing.assert_close(value, (sent[0].state[key] + sent[1].state[key]) / 2)


def test_defenses_act_in_order(scenario: Scenario) -> None:
    clip, noise = {"defense": "clipping", "norm": 0.01}, {"defense": "noise", "scale": 0.01}

    def sent(*tables: Table) -> float:
        observation = disclose(scenario.draw(0), defended(scenario, *tables))
        return norm(difference(observation.received, observation.initial, list(observation.received)))

    assert sent(noise, clip) == pytest.approx(0.01, rel=1e-4)
    assert sent(clip, noise) > 0.1
    everything = [{"defense": name, **STRONG[name]} for name in STRONG if name not in ("dp_sgd", "pure_noise")]
    assert math.isfinite(sent(*everything))
    assert math.isfinite(sent({"defense": "dp_sgd", "noise_multiplier": 1.0}, clip, noise))


# Configuration


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ([{"norm": 1.0}], r"defenses\[0\]: defense: expected a name"),
        ([{"defense": "clip"}], r"unknown defense 'clip'; did you mean 'clipping'"),
        ([{"defense": "clipping", "nrm": 1.0}], r"defenses\[0\] \(clipping\): unknown key 'nrm'"),
        ([{"defense": "clipping"}], r"\(clipping\): missing norm"),
        ([{"defense": "clipping", "norm": "1"}], r"norm: expected a number"),
        ([{"defense": "clipping", "norm": 0.0}], r"expected 0 < norm, got norm=0"),
        ([{"defense": "noise", "scale": -1.0}], r"expected 0 <= scale"),
        ([{"defense": "pruning", "ratio": 1.1}], r"expected 0 <= ratio <= 1"),
        ([{"defense": "quantization", "bits": 20}], r"expected 1 <= bits <= 16, or bits = 32"),
        ([{"defense": "dp_sgd", "noise_multiplier": 1.0, "sampling": "some"}], r"sampling: unknown value 'some'"),
        ([{"defense": "soteria", "ratio": 0.1}, {"defense": "dp_sgd", "noise_multiplier": 1.0}], r"at most one of"),
        ([{"defense": "mixup", "alpha": 1.0}, {"defense": "dp_sgd", "noise_multiplier": 1.0}], r"epsilon would be"),
    ],
)
def test_a_mistake_is_found_when_the_scenario_is_made(tables: list[Table], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Scenario(data="digits", defenses=tuple(tables))


# What each computes


def test_clipping_scales_to_the_bound_and_leaves_shorter_updates_alone(update: Update) -> None:
    clipped = protect("clipping", update, norm=0.5)
    assert norm(clipped) == pytest.approx(0.5, rel=1e-12)
    ratio = {name: clipped[name] / update[name] for name in update}
    assert all(torch.allclose(value, ratio["a.bias"][0]) for value in ratio.values()), "the direction stays"
    assert same(protect("clipping", update, norm=norm(update)), update)
    each = protect("clipping", update, norm=0.7, per_tensor=True)
    for name, value in update.items():
        assert float(each[name].norm()) == pytest.approx(min(0.7, float(value.norm())), rel=1e-12)


def test_every_client_round_and_seed_has_noise_of_its_own(scenario: Scenario, private: Private) -> None:
    """Noise that comes twice can be subtracted."""
    model = initial_model(scenario, scenario.image_spec(), seed=0, dtype=torch.float64)
    (defense,) = make_defenses([{"defense": "noise", "scale": 0.1}])

    def noise(*seed: object) -> Tensor:
        runs = [
            train(model, private, scenario.training, scenario.image_spec(), seed=seed, defenses=defenses)
            for defenses in ((), (defense,))
        ]
        return runs[1].state["conv1.weight"] - runs[0].state["conv1.weight"]

    first = noise("client", 0, "round", 0, 0)
    torch.testing.assert_close(first, noise("client", 0, "round", 0, 0))
    for other in (("client", 0, "round", 0, 1), ("client", 0, "round", 1, 0), ("client", 1, "round", 0, 0)):
        assert float((first - noise(*other)).abs().mean()) > 0.05


def test_two_noises_in_a_row_are_independent(scenario: Scenario, private: Private) -> None:
    """The same noise twice would be twice as large, not √2 times."""
    model = initial_model(scenario, scenario.image_spec(), seed=0, dtype=torch.float64)
    defenses = make_defenses([{"defense": "noise", "scale": 0.1}] * 2)
    plain, noisy = (
        train(model, private, scenario.training, scenario.image_spec(), seed=("client", 0), defenses=given).state
        for given in ((), defenses)
    )
    gaps = torch.cat([(noisy[name] - plain[name]).flatten() for name in parameters_of(model)])
    assert float(gaps.std()) == pytest.approx(0.1 * math.sqrt(2), rel=0.1)


@pytest.mark.parametrize(("settings", "deviation"), [({"scale": 0.3}, 0.3), ({"scale": 0.3, "bound": 2.0}, 0.6)])
def test_noise_is_gaussian_of_the_given_size(settings: Table, deviation: float) -> None:
    flat = {"w": torch.zeros(200, 200, dtype=torch.float64)}
    noise = protect("noise", flat, **settings)["w"].reshape(-1) / deviation
    count = len(noise)
    # Four standard errors each: of the mean, of the variance, and of the share within one deviation.
    assert abs(float(noise.mean())) < 4 / math.sqrt(count)
    assert abs(float(noise.var()) - 1) < 4 * math.sqrt(2 / count)
    assert abs(float((noise.abs() < 1).double().mean()) - 0.6827) < 4 * math.sqrt(0.22 / count)


def test_pruning_keeps_the_largest_entries_of_all_or_of_each_tensor(update: Update) -> None:
    flat = torch.cat([value.reshape(-1) for value in update.values()])
    pruned = torch.cat([value.reshape(-1) for value in protect("pruning", update, ratio=0.9).values()])
    kept = pruned != 0
    assert int(kept.sum()) == round(0.1 * len(flat))
    assert flat[kept].abs().min() >= flat[~kept].abs().max()
    assert torch.equal(pruned[kept], flat[kept])
    for name, value in protect("pruning", update, ratio=0.9, per_tensor=True).items():
        assert int((value != 0).sum()) == update[name].numel() - round(0.9 * update[name].numel())


def test_top_k_keeps_exactly_k_entries_even_of_equal_ones() -> None:
    equal = {"a": torch.ones(3, 4), "b": -torch.ones(5)}
    assert sum(int((value != 0).sum()) for value in protect("top_k", equal, count=7).values()) == 7


def test_quantization_has_as_many_levels_as_bits_allow(update: Update) -> None:
    for bits in (2, 4, 8):
        for name, value in protect("quantization", update, bits=bits).items():
            step = float(update[name].max() - update[name].min()) / (2**bits - 1)
            assert len(value.reshape(-1).unique()) <= 2**bits
            assert float((value - update[name]).abs().max()) <= step / 2 * (1 + 1e-9)


def test_signs_are_two_values_per_tensor_with_the_mean_magnitude(update: Update) -> None:
    for name, value in protect("quantization", update, bits=1).items():
        size = float(update[name].abs().mean())
        assert sorted(value.reshape(-1).unique().tolist()) == pytest.approx([-size, size])
        assert torch.equal(value.sign(), update[name].sign())


def test_pure_noise_is_as_long_as_the_update_and_carries_nothing_of_it(update: Update) -> None:
    noise = protect("pure_noise", update, seed=1)
    for name, value in update.items():
        assert float(noise[name].norm()) == pytest.approx(float(value.norm()))
    turned = protect("pure_noise", {name: -value.flip(0) for name, value in update.items()}, seed=1)
    for name, value in noise.items():
        torch.testing.assert_close(turned[name], value, rtol=1e-12, atol=0)


def test_withheld_statistics_are_not_in_the_observation(scenario: Scenario) -> None:
    observation = disclose(scenario.draw(0), strong(scenario, "withholding"))
    parameters = {name for name, _ in observation.model().named_parameters()}
    assert set(observation.received) == parameters < set(observation.initial)


def test_mixup_mixes_images_and_labels_by_the_same_shares() -> None:
    # Image i is constant i, its label is i: so a mixed image's value is what its soft label says.
    count = 400
    images = torch.arange(count, dtype=torch.float64).view(-1, 1, 1, 1).expand(-1, 1, 2, 2)
    mixed, soft = Mixup(alpha=0.5).mix(images, torch.arange(count), count, torch.Generator().manual_seed(0))
    torch.testing.assert_close(soft.sum(1), torch.ones(count, dtype=torch.float64))
    torch.testing.assert_close(soft @ torch.arange(count, dtype=torch.float64), mixed[:, 0, 0, 0])
    share = soft.diagonal()
    assert abs(float(share.mean()) - 0.5) < 4 * math.sqrt(1 / 8 / count)  # Beta(1/2, 1/2) has variance 1/8
    assert abs(float(share.var()) - 1 / 8) < 0.02


def test_mixup_trains_on_other_mixtures_every_epoch(private: Private, scenario: Scenario) -> None:
    table = {"defense": "mixup", "alpha": 1.0}
    one = disclose(private, defended(replace(scenario, epochs=1), table), seed=0)
    two = disclose(private, defended(replace(scenario, epochs=2), table), seed=0)
    plain = [disclose(private, replace(scenario, epochs=epochs), seed=0) for epochs in (1, 2)]
    assert not same(one.received, plain[0].received)
    assert not same(two.received, plain[1].received)


def test_soteria_prunes_what_a_brute_force_jacobian_says() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(48, 9), nn.ReLU(), nn.Linear(9, 4))
    model = model.double()
    images, labels = torch.rand(3, 1, 6, 6, dtype=torch.float64), torch.tensor([0, 3, 1])
    training = LocalTraining(epochs=1, batches=1, learning_rate=0.1)
    _, slopes = Soteria(ratio=1 / 3).gradients(model, images, labels, training)

    body = model[:-1]
    scores = torch.zeros(9, dtype=torch.float64)
    for image in images:
        jacobian: Tensor = torch.autograd.functional.jacobian(lambda x: body(x[None])[0], image)  # (9, 1, 6, 6)
        for j, value in enumerate(body(image[None])[0]):
            if value > 0:
                scores[j] += value.detach() / jacobian[j].norm()
    pruned = set(scores.topk(3).indices.tolist())
    plain = torch.autograd.grad(torch.nn.functional.cross_entropy(model(images), labels), list(model.parameters()))
    for (name, _), slope, expected in zip(model.named_parameters(), slopes, plain, strict=True):
        wanted = expected.clone()
        if name == "5.weight":
            wanted[:, sorted(pruned)] = 0
        torch.testing.assert_close(slope, wanted)
    assert {j for j in range(9) if (slopes[-2][:, j] == 0).all()} >= pruned


def test_soteria_refuses_a_model_that_does_not_use_its_last_linear_layer() -> None:
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = nn.Linear(4, 3), nn.Linear(3, 3)

        def forward(self, images: Tensor) -> Tensor:
            return self.used(images.flatten(1))  # type: ignore[no-any-return]

    training = LocalTraining(epochs=1, batches=1, learning_rate=0.1)
    with pytest.raises(ConfigError, match="last linear layer, which this model does not use"):
        Soteria(ratio=0.5).gradients(Spare(), torch.rand(2, 1, 2, 2), torch.tensor([0, 1]), training)


def test_soteria_refuses_a_model_without_a_linear_layer() -> None:
    with pytest.raises(ConfigError, match="last linear layer"):
        last_linear(nn.Conv2d(1, 1, 3))


@pytest.fixture
def sparse(private: Private, scenario: Scenario) -> Observation:
    return disclose(private, defended(scenario, {"defense": "pruning", "ratio": 0.9}))


def test_entries_that_a_defense_leaves_alone_arrive_bit_by_bit(
    private: Private, scenario: Scenario, sparse: Observation
) -> None:
    plain = disclose(private, scenario)
    for name, value in sparse.received.items():
        arrived = value != sparse.initial[name]
        assert torch.equal(value[arrived], plain.received[name][arrived])


def test_a_defense_in_training_that_changes_nothing_is_refused() -> None:
    with pytest.raises(TypeError, match="Misspelled trains as without a defense"):

        class Misspelled(InTraining):
            def gradient(self) -> None:
                """Nobody calls it."""
