"""The first screen in words: what was attacked, by whom, what would help, and what was promised."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from undelta.report.read import Audit
from undelta.trials.diagnosis import Level
from undelta.trials.record import REFERENCE, UNDEFENDED, Record
from undelta.trials.verdict import Verdict, times

GRAVITY: tuple[Level, ...] = ("leaks", "not compared", "attack failed", "not measured", "resisted")
"""From the gravest on."""


def gravest(verdicts: Sequence[Verdict]) -> Level:
    """What the whole page is colored by."""
    return min((verdict.level for verdict in verdicts), key=GRAVITY.index, default="not measured")


def facts(audit: Audit, sizes: Iterable[tuple[int, int]]) -> list[tuple[str, str]]:
    """What somebody with one minute must know, as titles and sentences."""
    return [
        ("What was attacked", _scope(audit.records, sizes)),
        ("Who attacks", _threat(audit.records)),
        *([("Whatever the attack", _limits(audit))] if any(one.bound for one in audit.judgment.verdicts) else []),
        ("What would help", _help(audit)),
        ("Promised privacy", _promise(audit)),
        ("Run", _run(audit)),
    ]


def _values(records: Sequence[Record], key: str) -> list[Any]:
    """What a field of the scenarios is, each value once."""
    found = {str(value): value for record in records if (value := record.scenario.get(key)) is not None}
    return list(found.values())


def _scope(records: Sequence[Record], sizes: Iterable[tuple[int, int]]) -> str:
    def words(key: str, form: str, one: str | None = None) -> list[str]:
        values = _values(records, key)
        chosen = one if one and [str(value) for value in values] == ["1"] else form
        return [chosen.format(" or ".join(map(str, values)))] if values else []

    parts = [
        *words("model", "The model {}"),
        *words("num_samples", "{} images of one client (N)", "one image of one client (N)"),
        *words("data", "data {}"),
        *sorted({f"{width} x {height} pixels" for width, height in sizes}),
        *words("epochs", "{} local epochs (E)", "one local epoch (E)"),
        *words("batches", "{} mini-batches (B)", "one mini-batch (B)"),
        *words("optimizer", "{}"),
        *words("learning_rate", "learning rate (η) {}"),
    ]
    for key, text in (
        ("rounds", "{} rounds before"),
        ("observed_rounds", "{} rounds observed"),
        ("aggregate", "{} clients summed"),
        ("clients", "{} clients"),
    ):
        values = [value for value in _values(records, key) if value not in (0, 1)]
        parts += [text.format(" or ".join(map(str, values)))] if values else []
    named = dict.fromkeys(record.defense for record in records)
    defenses = [name for name in named if name not in (UNDEFENDED, REFERENCE)]
    parts += [f"defenses: {', '.join(defenses)}"] if defenses else []
    return f"{', '.join(parts)}." if parts else "Nothing is known of it."


def _threat(records: Sequence[Record]) -> str:
    granted = {bool(record.scenario.get("grant_labels")) for record in records}
    letters = {"epochs": "E", "batches": "B", "learning_rate": "η"}
    knows = ["N", *(letter for key, letter in letters.items() if _values(records, key))]
    most = max((record.scenario.get("observed_rounds") or 1 for record in records), default=1)
    rounds = f" in up to {most} rounds" if most > 1 else ""
    labels = {
        frozenset({True}): "It was granted the labels, which a real server may have to infer.",
        frozenset({False}): "It was not granted the labels.",
    }.get(frozenset(granted), "Some scenarios grant it the labels.")
    return (
        "A curious server that follows the protocol: it sees the model before and after one client's training"
        f"{rounds}, and knows {', '.join(knows)}. {labels}"
    )


def _help(audit: Audit) -> str:
    tradeoff = audit.tradeoff
    if tradeoff:
        plain = next((point for point in tradeoff.points if point.defense == UNDEFENDED), None)
        quiet = [point for point in tradeoff.points if point.pareto and point.at_noise_level]
        best = max(quiet, key=lambda point: point.accuracy or 0.0, default=None)
        if best and best.accuracy is not None:
            price = f", {plain.accuracy:.1%} without" if plain and plain.accuracy is not None else ""
            cost = f"at an accuracy of {best.accuracy:.1%}{price}"
            return f"{best.defense}: these attacks find no more than in noise, {cost}."
        return "No defense that was measured keeps these attacks at the level of noise; see the trade-off."
    resisted = [verdict.defense for verdict in audit.judgment.verdicts if verdict.diagnosis.reassuring]
    if resisted:
        names = ", ".join(dict.fromkeys(resisted))
        return f"{names} resisted here. The price in accuracy was not measured; undelta defend does."
    return "Not measured: undelta defend weighs defenses by what they save and what they cost."


def _limits(audit: Audit) -> str:
    """The lowest and the highest ceiling, and how far attacks came there."""
    verdicts = audit.judgment.verdicts
    alone = len({verdict.scenario for verdict in verdicts}) == 1
    tight = []
    for verdict in verdicts:
        row = verdict.bound.row if verdict.bound else None
        if row and verdict.bound and not row.loose and not verdict.bound.doubts:
            plain = "without a defense" if verdict.defense == UNDEFENDED else f"with {verdict.defense}"
            reached = "" if row.reached is None else f", where {row.reached:.1f} dB were reached"
            tight.append((row.ceiling, f"{plain if alone else f'on {verdict.title}'}{reached}"))
    tight.sort()
    said = [f"no attack is expected to exceed {one:.1f} dB {where}" for one, where in _ends(tight)]
    left = len(verdicts) - len(tight)
    said += [f"{left} of {len(verdicts)} have no ceiling that says much"] if left else []
    words = "; ".join(said)
    return f"{words[0].upper()}{words[1:]}. Means over images, under assumptions that are named with the bound."


def _ends(values: Sequence[tuple[float, str]]) -> Sequence[tuple[float, str]]:
    return values if len(values) < 3 else (values[0], values[-1])


def _promise(audit: Audit) -> str:
    said = []
    for verdict in audit.judgment.verdicts:
        if verdict.delta is not None:
            epsilon = (
                "no finite ε, since there is no noise" if verdict.epsilon is None else f"ε = {verdict.epsilon:.3g}"
            )
            said.append(f"{verdict.title}: {epsilon} at δ = {verdict.delta:g}")
    unknown = {record.scenario.get("data") is None for record in audit.records}  # of updates from elsewhere
    if unknown == {True}:
        return "Not known: an update does not tell how its client was protected."
    words = (
        f"{'; '.join(said)} (DP-SGD, up to the last round that was observed)."
        if said
        else "None: no differential privacy."
    )
    return words + (" Of the recorded updates it is not known." if True in unknown else "")


def _run(audit: Audit) -> str:
    records = audit.records
    dates = sorted(record.date for record in records if record.date)
    versions = next((record.versions for record in reversed(records) if record.versions), {})
    scored = sum(record.scored for record in records)
    when = [" to ".join(dict.fromkeys((dates[0][:10], dates[-1][:10])))] if dates else []
    parts = [
        *when,
        f"{times(len(records), 'trial')}, {scored} scored",
        *(f"{name} {version}" for name, version in versions.items() if name in ("undelta", "torch")),
        *([f"by {audit.judgment.auditor}"] if audit.judgment.auditor else []),
    ]
    return f"{'; '.join(parts)}."
