"""Fitting a state that came from outside to the model it is said to be of: names, shapes, precision.

What cannot be fitted is an error that says why; what can, leaves a note. `undelta.observation.assemble` does the rest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from undelta.errors import ObservationError
from undelta.observation.checkpoint import Notes
from undelta.observation.checks import FLOATS, kind, some
from undelta.training import LocalTraining
from undelta.updates import State

PREFIXES = ("module.", "model.", "net.")
"""What DataParallel and training frameworks put in front of every name."""

COUNTER = "num_batches_tracked"
_POSITION = re.compile(r"(?:arr_)?(\d+)\Z")


def fit(
    found: Mapping[str, Tensor],
    model: nn.Module,
    *,
    where: str,
    received: bool = False,
    withheld: bool = False,
    own: State | None = None,
) -> tuple[State, Notes]:
    """A state under the model's own names, in float32 or float64; raises if it is that of another model.

    A client may keep its buffers to itself (``received``), and sends no frozen parameters; ``withheld`` lets it keep
    any. The server knows all that it sent; what is frozen and not in its file may be the model's ``own``.
    """
    expected, notes = model.state_dict(), Notes()
    found = renamed(found, model, where, notes)
    buffers = {name for name, _ in model.named_buffers()}
    frozen = {name for name, value in model.named_parameters() if not value.requires_grad}
    # Checkpoints of old versions lack counters, which only a BatchNorm without momentum reads.
    counters = {name for name in expected if name.rpartition(".")[2] == COUNTER}
    if received:
        optional = set(expected) if withheld else buffers | frozen
    else:
        optional = counters | (frozen | buffers if own is not None and frozen - found.keys() else set())
    if own is not None and (taken := (expected.keys() - found.keys()) & optional - counters):
        found = {**{name: own[name] for name in taken}, **found}
        notes.append(f"{where}: no {some(taken)}; taken from the model's function, as the weights that clients have")
    _check_names(found, expected, optional, where)
    state: State = {}
    coarse = set()
    for name, like in expected.items():
        if name not in found:
            continue
        tensor = found[name].detach()
        _check_shape(tensor, like, name, expected, where)
        if not like.is_floating_point():
            if tensor.is_complex():
                raise ObservationError(f"{where}, {name!r}: expected whole numbers, got {kind(tensor.dtype)}")
            if tensor.is_floating_point():
                tensor = tensor.cpu().double().round()  # averaging makes fractions of counters
            if not torch.isfinite(tensor).all():
                raise ObservationError(f"{where}, {name!r}: expected whole numbers, got NaN or infinity")
            tensor = tensor.to(like.dtype)
        elif not tensor.is_floating_point():
            raise ObservationError(f"{where}, {name!r}: expected floating-point values, got {kind(tensor.dtype)}")
        elif tensor.dtype not in FLOATS:
            coarse.add(kind(tensor.dtype))
            tensor = tensor.float()
        state[name] = tensor.cpu().clone().contiguous()
    if coarse:
        notes.append(f"{where}: {', '.join(sorted(coarse))} converted to float32; what rounding took away stays lost")
    missing = expected.keys() - found.keys() - (frozen if received else set())
    if missing and not received:
        state |= {name: torch.zeros_like(expected[name]) for name in missing}
    if missing:
        what = "taken as 0" if not received else "so attacks do not use it"
        notes.append(f"{where}: no {some(missing)}, {what}")
    return state, notes


def renamed(found: Mapping[str, Tensor], model: nn.Module, where: str, notes: Notes) -> dict[str, Tensor]:
    """The state under the model's names, if wrappers added prefixes, PEFT shortened them or arrays came as a list."""
    expected = model.state_dict()
    names = {name: name.replace("_orig_mod.", "") for name in found}
    if any(old != new for old, new in names.items()):
        notes.append(f"{where}: removed '_orig_mod.' of torch.compile from the names")
    for prefix in PREFIXES:
        strange = not any(name.startswith(prefix) for name in expected)
        if strange and names and all(name.startswith(prefix) for name in names.values()):
            names = {old: new.removeprefix(prefix) for old, new in names.items()}
            notes.append(f"{where}: removed {prefix!r} from the names")
    short = {name.replace(".modules_to_save.default", "").replace(".default", ""): name for name in expected}
    if any(new not in expected and new in short for new in names.values()):
        names = {old: new if new in expected else short.get(new, new) for old, new in names.items()}
        notes.append(f"{where}: names of a PEFT adapter, taken for those of the adapter 'default'")
    positions = {old: _POSITION.match(new) for old, new in names.items()}
    order = {old: int(match[1]) for old, match in positions.items() if match}
    parameters = [name for name, _ in model.named_parameters()]
    listed = list(expected) if len(found) == len(expected) else parameters
    if (
        sorted(order.values()) == list(range(len(found)))
        and len(found) == len(listed)
        and not expected.keys() & found.keys()
    ):
        names = {old: listed[position] for old, position in order.items()}
        notes.append(f"{where}: arrays without names, taken in the model's order")
    state = {names[old]: tensor for old, tensor in found.items()}
    if len(state) < len(found):
        raise ObservationError(f"{where}: two entries have one name after the prefixes are removed")
    return state


def _check_names(found: Mapping[str, Tensor], expected: State, optional: set[str], where: str) -> None:
    missing, strange = expected.keys() - optional - found.keys(), found.keys() - expected.keys()
    if not missing and not strange:
        return
    problems = [f"it lacks {some(missing)}"] if missing else []
    problems += [f"it has {some(strange)}, unknown to the model"] if strange else []
    sides = {name.partition("/")[0] for name in strange}
    if sides <= {"initial", "received", "labels"} and strange:
        hint = "this is an observation already: attack it"
    elif not found.keys() & expected.keys():
        hint = "no name fits; is it the state of another model?"
    elif not strange:
        hint = (
            "save all of model.state_dict(), buffers included; or say which parameters are trained (trained), or what "
            "those are that the client does not return (missing): frozen or withheld"
        )
    else:
        hint = "is it the state of another model, or of other model arguments?"
    raise ObservationError(f"{where} does not fit the model: {' and '.join(problems)}; {hint}")


def _check_shape(tensor: Tensor, like: Tensor, name: str, expected: State, where: str) -> None:
    if tensor.shape == like.shape:
        return
    last = name.rpartition(".")[0] == next(reversed(expected)).rpartition(".")[0]
    classes = last and tensor.shape[1:] == like.shape[1:]
    hint = "is the number of classes right?" if classes else "are the architecture, its arguments and the shape right?"
    raise ObservationError(f"{where}, {name!r}: expected shape {tuple(like.shape)}, got {tuple(tensor.shape)}; {hint}")


def same_precision(initial: State, received: State) -> tuple[State, State]:
    """Both states in float64 if all of both is, else in float32."""
    floats = [tensor for state in (initial, received) for tensor in state.values() if tensor.is_floating_point()]
    if all(tensor.dtype == torch.float64 for tensor in floats):
        return initial, received
    return tuple(  # type: ignore[return-value]
        {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in state.items()}
        for state in (initial, received)
    )


def check_pair(initial: State, received: State, model: nn.Module, names: tuple[str, str]) -> None:
    """What two states say together: whether training happened, and in which direction."""
    trained = [name for name, value in model.named_parameters() if value.requires_grad and name in received]
    if all(torch.equal(initial[name], received[name]) for name in trained):
        raise ObservationError(
            f"{names[0]} and {names[1]} hold the same parameters: nothing was trained, or one file was given twice"
        )
    if max(_counted(initial, received), default=0) < 0:
        raise ObservationError(f"{names[1]} has seen fewer mini-batches than {names[0]}; are the two swapped?")


def compare_frozen(initial: State, received: State, model: nn.Module) -> Notes:
    """Notes if a parameter moved that is said to be frozen, or did not that is said to be trained."""
    sent = {name: value.requires_grad for name, value in model.named_parameters() if name in received}
    moved = {name for name in sent if not torch.equal(initial[name], received[name])}
    strange = {name for name in moved if not sent[name]}
    still = {name for name in sent if sent[name]} - moved
    notes = Notes()
    if strange:
        notes.append(f"{some(strange)} moved, though not said to be trained; is that list (trained) right?")
    if still:
        notes.append(f"{some(still)} did not move; if the client freezes parameters, say which it trains (trained)")
    return notes


def compare_steps(initial: State, received: State, training: LocalTraining) -> Notes:
    """A client's BatchNorms count its mini-batches; a note if that is not what the training says."""
    counted = max(_counted(initial, received), default=None)
    told = training.epochs * training.batches if training.norm_mode == "train" else 0
    if counted is None or counted == told:
        return []
    if counted == 0:
        return ["BatchNorm counted no mini-batch: did the client train in norm mode 'eval'? Attacks replay 'train'"]
    if told == 0:
        return [f"BatchNorm counted {counted} mini-batches, but norm mode 'eval' counts none; was it 'train'?"]
    return [f"BatchNorm counted {counted} mini-batches, but epochs x batches is {told}; is one of them wrong?"]


def _counted(initial: State, received: State) -> list[int]:
    return [int(received[name] - initial[name]) for name in received if name.rpartition(".")[2] == COUNTER]
