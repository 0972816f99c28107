"""One paper, one file; `ATTACKS` names them all. GIAS is not among them, since it needs a generator of yours."""

from collections.abc import Callable

from undelta.attacker.attack import Attack
from undelta.attacker.attacks.agic import agic
from undelta.attacker.attacks.analytic import analytic
from undelta.attacker.attacks.awa import awa
from undelta.attacker.attacks.cpl import cpl
from undelta.attacker.attacks.dlfa import dlfa
from undelta.attacker.attacks.dlg import dlg
from undelta.attacker.attacks.fedleak import fedleak
from undelta.attacker.attacks.geng import geng_epoch, geng_gradient, geng_path
from undelta.attacker.attacks.gias import gias
from undelta.attacker.attacks.gradinversion import gradinversion
from undelta.attacker.attacks.idlg import idlg, idlg_fedavg
from undelta.attacker.attacks.ig import ig
from undelta.attacker.attacks.nl_sme import nl_sme
from undelta.attacker.attacks.pi_sme import pi_sme
from undelta.attacker.attacks.sapag import sapag
from undelta.attacker.attacks.sme import sme
from undelta.attacker.attacks.strongest import strongest
from undelta.attacker.attacks.tgias_ro import tgias_ro

ATTACKS: dict[str, Callable[..., Attack]] = {
    "awa": awa,
    "strongest": strongest,
    "dlg": dlg,
    "cpl": cpl,
    "idlg": idlg,
    "idlg_fedavg": idlg_fedavg,
    "ig": ig,
    "gradinversion": gradinversion,
    "sapag": sapag,
    "agic": agic,
    "geng_epoch": geng_epoch,
    "geng_path": geng_path,
    "geng_gradient": geng_gradient,
    "sme": sme,
    "nl_sme": nl_sme,
    "pi_sme": pi_sme,
    "fedleak": fedleak,
    "tgias_ro": tgias_ro,
    "dlfa": dlfa,
    "analytic": analytic,
}

__all__ = [
    "ATTACKS",
    "agic",
    "analytic",
    "awa",
    "cpl",
    "dlfa",
    "dlg",
    "fedleak",
    "geng_epoch",
    "geng_gradient",
    "geng_path",
    "gias",
    "gradinversion",
    "idlg",
    "idlg_fedavg",
    "ig",
    "nl_sme",
    "pi_sme",
    "sapag",
    "sme",
    "strongest",
    "tgias_ro",
]
