"""Withholding: BatchNorm statistics stay with the client."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from undelta.client.defenses.defense import OnUpdate
from undelta.updates import Update


@dataclass(frozen=True, kw_only=True)
class Withholding(OnUpdate):
    """Send parameters only: running means and variances, which describe the images, are not sent (FedBN's choice).

    Li et al. 2021. The parameters of BatchNorm layers themselves are sent, unlike there.
    """

    sends_buffers = False

    def protect(self, update: Update, generator: torch.Generator) -> Update:
        return update
