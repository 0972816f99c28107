"""Labels from the last layer's update: exact where theory says so, counts elsewhere, and refusals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from undelta.attacker.labels import LABELS, LabelSource, _fill, auto, bias, disclosed, dlfa, geng, idlg, joint, yin
from undelta.attacker.labels import label_source as source_named
from undelta.client.datasets import open_dataset
from undelta.client.disclose import disclose
from undelta.client.private import Private
from undelta.client.scenario import Scenario
from undelta.errors import ConfigError, MissingKnowledge
from undelta.observation import Observation
from undelta.observation.withhold import only_layers, without, without_labels

CLASSES = 10
ONE_STEP = Scenario(data="digits", num_samples=1, model="lenet", epochs=1, batches=1, learning_rate=0.05)
CNN = replace(ONE_STEP, model="cnn", model_arguments={"width": 8, "hidden": 32})

CNN_LONGER = replace(CNN, num_samples=8, epochs=3, batches=2)
LENET_LONG = replace(ONE_STEP, num_samples=8, epochs=5, batches=2, learning_rate=0.1)

CASES: dict[str, list[int]] = {
    "balanced": list(range(CLASSES)),
    "skewed": [0] * 6 + [1, 1, 2, 9],
    "all equal": [3] * 8,
    "more samples than classes": [*range(CLASSES), *range(CLASSES), 0, 0, 5, 5],
}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def client(labels: Sequence[int], seed: int = 0) -> Private:
    """Digits with these labels, in this order."""
    dataset, draws = open_dataset("digits"), generator(seed)
    indices: list[int] = []
    for label in labels:
        pool = [index for index in torch.where(dataset.labels == label)[0].tolist() if index not in indices]
        indices.append(pool[int(torch.randint(len(pool), (1,), generator=draws))])
    return Private(images=dataset.draw(indices, 8), labels=dataset.labels[indices])


def observe(labels: Sequence[int], scenario: Scenario, seed: int = 0) -> Observation:
    private = client(labels, seed)
    return disclose(private, replace(scenario, num_samples=len(labels)), seed=seed, dtype=torch.float64)


def counts(labels: Tensor | Sequence[int]) -> Tensor:
    return torch.bincount(torch.as_tensor(labels), minlength=CLASSES)


def accuracy(source: LabelSource, labels: Sequence[int], scenario: Scenario) -> list[float]:
    """Over three clients and nets, the share of the labels that the source finds."""
    shares = []
    for seed in range(3):
        found = source(without_labels(observe(labels, scenario, seed)), generator())
        assert len(found) == len(labels)
        shares.append(float(torch.minimum(counts(found), counts(labels)).sum()) / len(labels))
    return shares


def test_idlg_finds_the_label_of_a_single_sample_without_fail() -> None:
    for seed in range(30):
        private = ONE_STEP.draw(seed)
        observation = disclose(private, ONE_STEP, seed=seed)
        assert torch.equal(idlg(without_labels(observation), generator()), private.labels)


@pytest.mark.parametrize("samples", [2, 5, 9])
def test_yins_rule_is_exact_for_distinct_labels_on_a_fresh_net_with_relus(samples: int) -> None:
    for seed in range(5):
        labels = torch.randperm(CLASSES, generator=generator(seed))[:samples].tolist()
        found = yin(without_labels(observe(labels, CNN, seed)), generator())
        assert sorted(found.tolist()) == sorted(labels)


@pytest.mark.parametrize("case", CASES)
def test_the_bias_counts_exactly_after_a_few_steps_of_a_fresh_net(case: str) -> None:
    assert accuracy(bias, CASES[case], CNN) == [1.0] * 3
    assert accuracy(bias, CASES[case], CNN_LONGER) == [1.0] * 3


@pytest.mark.parametrize("source", [geng, dlfa])
@pytest.mark.parametrize(
    ("case", "least"),
    [("balanced", 1.0), ("skewed", 0.7), ("all equal", 1.0), ("more samples than classes", 0.9)],
)
def test_the_last_layers_rows_tell_most_counts(source: LabelSource, case: str, least: float) -> None:
    for scenario in (CNN, CNN_LONGER):
        assert min(accuracy(source, CASES[case], scenario)) >= least - 0.01


@pytest.mark.parametrize("case", CASES)
def test_following_the_path_counts_better_after_many_steps_of_a_sigmoid_net(case: str) -> None:
    at_start, along_path = (sum(accuracy(source, CASES[case], LENET_LONG)) for source in (geng, dlfa))
    assert along_path > at_start


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=20), st.integers(1, 100))
@settings(deadline=None)
def test_filled_labels_are_always_n(values: list[float], num_samples: int) -> None:
    labels = _fill(torch.tensor(values), num_samples)
    assert labels.shape == (num_samples,)
    assert labels.dtype == torch.int64
    assert labels.min() >= 0
    assert labels.max() < len(values)
    assert torch.equal(labels, labels.sort().values)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=20).filter(any), st.floats(-0.01, 0.01))
@settings(deadline=None)
def test_whole_counts_are_kept_as_they_are(whole: list[int], error: float) -> None:
    filled = _fill(torch.tensor(whole, dtype=torch.float64) + error, sum(whole))
    assert torch.bincount(filled, minlength=len(whole)).tolist() == whole


def test_what_rounding_loses_goes_to_the_largest_remainder() -> None:
    assert counts(_fill(torch.tensor([1.4, 2.0, 0.45, 0.15, *[0.0] * 6]), 4)).tolist()[:4] == [1, 2, 1, 0]


def test_where_not_even_signs_can_tell_labels_are_optimized() -> None:
    blind = without_labels(observe([1] * 6 + [2] * 6, CNN))
    assert auto(blind, generator()).dtype == torch.int64  # counted
    unscaled = replace(blind, unknown=("learning_rate",), training=replace(blind.training, learning_rate=1.0))
    assert auto(unscaled, generator()).shape == (12, 10)
    few = without_labels(observe([1, 2], CNN))
    unscaled = replace(few, unknown=("learning_rate",), training=replace(few.training, learning_rate=1.0))
    assert sorted(auto(unscaled, generator()).tolist()) == [1, 2]


def test_granted_labels_come_back_in_orders_of_the_attackers_own() -> None:
    labels = [7, 0, 3, 9, 4, 1]
    observation = observe(labels, CNN)
    orders = {tuple(disclosed(observation, generator(seed)).tolist()) for seed in range(10)}
    assert all(sorted(order) == sorted(labels) for order in orders)
    assert len(orders) > 5
    assert len(orders & {tuple(labels), tuple(sorted(labels))}) < 2


@pytest.mark.parametrize("source", [disclosed, yin, geng, dlfa, bias, auto])
def test_the_order_of_labels_differs_by_seed_and_not_by_the_clients_order(source: LabelSource) -> None:
    labels = [7, 0, 3, 9, 4, 1]
    observation, turned = (observe(order, CNN) for order in (labels, labels[::-1]))
    orders = [source(observation, generator(seed)).tolist() for seed in range(6)]
    assert len({tuple(order) for order in orders}) > 1
    assert all(sorted(order) == sorted(labels) for order in orders)
    assert [source(turned, generator(seed)).tolist() for seed in range(6)] != [labels[::-1]] * 6
    if source is disclosed:
        assert orders == [disclosed(turned, generator(seed)).tolist() for seed in range(6)]


def test_joint_labels_are_logits_to_be_moved() -> None:
    observation = without_labels(observe([1, 2, 2], CNN))
    logits = joint(observation, generator())
    assert logits.shape == (3, CLASSES)
    assert logits.dtype == observation.dtype
    assert torch.equal(logits, joint(observation, generator()))


def test_automatic_labels_are_the_granted_ones_where_there_are_any() -> None:
    observation = observe([1, 2, 2, 8], CNN)
    lie = replace(observation, labels=torch.tensor([0, 0, 0, 0]))
    assert auto(lie, generator()).tolist() == [0, 0, 0, 0]
    assert sorted(auto(without_labels(observation), generator()).tolist()) == [1, 2, 2, 8]


@pytest.mark.parametrize("source", [yin, geng, dlfa, bias, auto])
def test_without_the_last_layer_labels_cannot_be_inferred(source: LabelSource) -> None:
    hidden = without_labels(only_layers(observe([1, 2, 8], CNN), ["conv1", "conv2", "fc1"]))
    with pytest.raises(MissingKnowledge, match=r"last linear layer with 10 outputs.*Grant labels"):
        source(hidden, generator())
    with pytest.raises(MissingKnowledge, match="last linear layer"):
        idlg(replace(hidden, num_samples=1), generator())


@pytest.mark.parametrize("key", ["epochs", "learning_rate"])
def test_counts_need_the_length_of_the_path_but_signs_do_not(key: str) -> None:
    labels = [1, 2, 8]
    blind = without_labels(without(observe(labels, CNN), key))  # type: ignore[arg-type]
    for source in (geng, dlfa, bias):
        with pytest.raises(MissingKnowledge, match=key):
            source(blind, generator())
    assert sorted(yin(blind, generator()).tolist()) == labels
    single = without_labels(without(observe([4], ONE_STEP), key))  # type: ignore[arg-type]
    assert idlg(single, generator()).tolist() == [4]


def test_rules_for_few_samples_refuse_more_and_name_one_that_does_not() -> None:
    with pytest.raises(MissingKnowledge, match=r"num_samples=2.*geng"):
        idlg(observe([1, 2], CNN), generator())
    with pytest.raises(MissingKnowledge, match=r"11 samples of 10 classes.*geng"):
        yin(observe([*range(CLASSES), 0], CNN), generator())


def test_labels_that_nobody_granted_are_refused() -> None:
    with pytest.raises(MissingKnowledge, match="grant_labels"):
        disclosed(without_labels(observe([1, 2], CNN)), generator())


def test_sources_have_names() -> None:
    assert all(source_named(name) is source for name, source in LABELS.items())
    with pytest.raises(ConfigError, match="gneg"):
        source_named("gneg")


@pytest.mark.parametrize("rule", ["idlg", "yin", "geng", "dlfa", "bias"])
def test_labels_are_not_inferred_from_a_loss_without_softmax(rule: str) -> None:
    scenario = Scenario(data="digits", num_samples=1, model="lenet", epochs=1, batches=1, loss="l2")
    with pytest.raises(MissingKnowledge, match="cross-entropy, but the loss is 'l2'"):
        LABELS[rule](disclose(scenario.draw(0), scenario), torch.Generator())
