"""One paper, one file; `ATTACKS` names them all."""

from collections.abc import Callable

from undelta.attacker.attacks.awa import awa
from undelta.attacker.attacks.strongest import strongest
from undelta.attacker.matching import Attack

ATTACKS: dict[str, Callable[..., Attack]] = {
    "awa": awa,
    "strongest": strongest,
}

__all__ = ["ATTACKS", "awa", "strongest"]
