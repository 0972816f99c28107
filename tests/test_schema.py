"""Strict parsing: every mistake is named, with its place, in one line."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undelta.errors import ConfigError, DataError, ObservationError, UndeltaError
from undelta.schema import call, parse, unknown

pytestmark = pytest.mark.usefixtures("bounded_memory")


@dataclass(frozen=True, kw_only=True)
class Inner:
    rate: float
    mode: Literal["train", "eval"] = "train"

    def __post_init__(self) -> None:
        if self.rate <= 0:
            raise ConfigError(f"expected rate > 0, got rate={self.rate}")


@dataclass(frozen=True, kw_only=True)
class Outer:
    count: int
    name: str = "nobody"
    flag: bool = False
    limit: int | None = None
    inner: Inner = Inner(rate=1.0)
    pair: tuple[int, float] = (1, 2.0)
    widths: tuple[int, ...] = ()
    layers: tuple[Inner, ...] = ()
    extras: Mapping[str, Any] = field(default_factory=dict)
    secret: int = field(default=7, init=False)


def outer(**values: object) -> Outer:
    return parse(Outer, {"count": 3, **values}, where="here", error=ConfigError)


def complaint(**values: object) -> str:
    with pytest.raises(ConfigError) as caught:
        outer(**values)
    message = str(caught.value)
    assert message.startswith("here: ")
    assert "\n" not in message
    return message.removeprefix("here: ")


def function(*, steps: int = 1, rate: float = 0.5, mode: Literal["fast", "slow"] = "fast") -> tuple[int, float, str]:
    if steps < 1:
        raise DataError(f"expected steps >= 1, got {steps=}")
    return steps, rate, mode


def test_defaults_fill_what_is_left_out() -> None:
    assert outer() == Outer(count=3)


def test_nested_tables_become_nested_dataclasses() -> None:
    parsed = outer(inner={"rate": 0.5, "mode": "eval"}, layers=[{"rate": 1.0}, {"rate": 2.0}])
    assert parsed.inner == Inner(rate=0.5, mode="eval")
    assert parsed.layers == (Inner(rate=1.0), Inner(rate=2.0))


def test_lists_become_tuples() -> None:
    parsed = outer(pair=[4, 5], widths=[1, 2, 3])
    assert parsed.pair == (4, 5.0)
    assert parsed.widths == (1, 2, 3)
    assert outer(widths=[]).widths == ()


def test_a_whole_number_is_a_fine_number() -> None:
    rate = outer(inner={"rate": 2}).inner.rate
    assert rate == 2.0
    assert isinstance(rate, float)


def test_an_optional_value_may_be_none() -> None:
    assert outer(limit=None).limit is None
    assert outer(limit=5).limit == 5
    assert complaint(limit="5") == "limit: expected a whole number, got '5'"


def test_free_tables_are_copied_as_they_are() -> None:
    extras = {"anything": [1, {"goes": None}]}
    parsed = outer(extras=extras).extras
    assert parsed == extras
    assert parsed is not extras
    assert complaint(extras=[1]) == "extras: expected a table, got [1]"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"count": True}, "count: expected a whole number, got True"),
        ({"count": 1.0}, "count: expected a whole number, got 1.0"),
        ({"count": None}, "count: expected a whole number, got None"),
        ({"count": "1"}, "count: expected a whole number, got '1'"),
        ({"flag": 1}, "flag: expected true or false, got 1"),
        ({"name": 1}, "name: expected a text, got 1"),
        ({"inner": {"rate": True}}, "inner: rate: expected a number, got True"),
        ({"inner": {"rate": "fast"}}, "inner: rate: expected a number, got 'fast'"),
        ({"inner": {}}, "inner: missing rate"),
        ({"inner": 1}, "inner: expected a table of settings, got 1"),
        ({"inner": {"rate": -1}}, "inner: expected rate > 0, got rate=-1.0"),
        ({"pair": [1]}, "pair: expected 2 entries, got 1"),
        ({"pair": [1.5, 1]}, "pair[0]: expected a whole number, got 1.5"),
        ({"pair": "12"}, "pair: expected a list, got '12'"),
        ({"widths": [1, 2, "3"]}, "widths[2]: expected a whole number, got '3'"),
        ({"layers": [{"rate": 1.0}, {"rat": 1.0}]}, "layers[1]: unknown key 'rat'; did you mean 'rate'? "),
    ],
)
def test_an_ill_typed_value_is_named_with_its_place(values: dict[str, object], expected: str) -> None:
    assert complaint(**values).startswith(expected)


def test_a_word_that_is_no_choice_gets_the_nearest_one() -> None:
    message = complaint(inner={"rate": 1.0, "mode": "evil"})
    assert message == "inner: mode: unknown value 'evil'; did you mean 'eval'? choose from eval, train"
    assert complaint(inner={"rate": 1.0, "mode": ["eval"]}).startswith("inner: mode: unknown value")


def test_an_unknown_key_gets_the_nearest_one() -> None:
    message = complaint(widht=1)
    assert message.startswith("unknown key 'widht'; did you mean 'widths'? choose from count, extras, ")
    assert "did you mean" not in complaint(zzzzzz=1)


def test_fields_that_are_no_arguments_are_unknown() -> None:
    assert complaint(secret=1).startswith("unknown key 'secret'")


def test_all_missing_keys_are_named() -> None:
    with pytest.raises(ConfigError, match=r"^here: missing count$"):
        parse(Outer, {}, where="here", error=ConfigError)


@pytest.mark.parametrize("values", [None, [], "count", 3])
def test_what_is_no_table_is_refused(values: object) -> None:
    with pytest.raises(ConfigError, match=r"^here: expected a table of settings, got "):
        parse(Outer, values, where="here", error=ConfigError)


@pytest.mark.parametrize("error", [ConfigError, DataError, ObservationError])
def test_the_error_is_of_the_callers_kind_and_says_where(error: type[UndeltaError]) -> None:
    for values in ({"cuont": 1}, {}, {"count": "1"}, {"count": 1, "inner": {"rate": 0}}):
        with pytest.raises(error, match=r"^some/file: ") as caught:
            parse(Outer, values, where="some/file", error=error)
        assert type(caught.value) is error


def test_long_values_are_cut_in_messages() -> None:
    assert len(complaint(count="x" * 10_000)) < 120
    assert len(complaint(**{"x" * 10_000: 1})) < 300


def test_a_whole_number_too_large_for_a_float_is_refused() -> None:
    assert complaint(inner={"rate": 10**400}).startswith("inner: rate: ")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["count", "inner", "rate", "mode", "pair", "x"]), inner)
    ),
    max_leaves=6,
)


@given(JSON)
def test_any_json_is_parsed_or_refused(values: object) -> None:
    with contextlib.suppress(ConfigError):
        assert isinstance(parse(Outer, values, where="here", error=ConfigError), Outer)


def test_a_call_checks_keys_and_types() -> None:
    assert call(function, {}, where="here", error=ConfigError) == (1, 0.5, "fast")
    assert call(function, {"steps": 2, "rate": 1}, where="here", error=ConfigError) == (2, 1.0, "fast")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"stpes": 2}, "here: unknown key 'stpes'; did you mean 'steps'? choose from mode, rate, steps"),
        ({"steps": 2.5}, "here: steps: expected a whole number, got 2.5"),
        ({"steps": False}, "here: steps: expected a whole number, got False"),
        ({"rate": "high"}, "here: rate: expected a number, got 'high'"),
        ({"mode": "slwo"}, "here: mode: unknown value 'slwo'; did you mean 'slow'? choose from fast, slow"),
        ({"steps": 0}, "here: expected steps >= 1, got steps=0"),
    ],
)
def test_a_bad_call_is_one_clear_error(values: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        call(function, values, where="here", error=ConfigError)
    assert str(caught.value) == expected


def test_unknown_names_the_choices_in_order() -> None:
    assert unknown("attack", "awe", ["strongest", "awa"]) == (
        "unknown attack 'awe'; did you mean 'awa'? choose from awa, strongest"
    )
    assert unknown("attack", 5, ["b", "a"]) == "unknown attack '5'; choose from a, b"
