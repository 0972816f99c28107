"""What no report can say, and what its words mean."""

from __future__ import annotations

from undelta.trials.diagnosis import Level

POOR = (
    "A poor reconstruction shows that these attacks, with these settings and iterations, did not recover these images. "
    "It does not prove that nobody can: a stronger attack, more iterations or other knowledge may succeed."
)
GOOD = (
    "A good reconstruction proves leakage for these images, this model and this round; other images of the same "
    "client may fare better or worse."
)
UNCOMPARED = (
    "Images that explain an update are not proven to be the client's: until somebody compares them with the originals, "
    "neither leakage nor safety is shown."
)
MATCHED = (
    "Reconstructions were matched with the originals before scoring, and no attack saw an original. Differences "
    "between attacks that are smaller than the spread over seeds mean little."
)


def limits(gravest: Level) -> tuple[str, ...]:
    """What a report does not prove; what matters most for its gravest verdict comes first."""
    if gravest == "not compared":
        return UNCOMPARED, POOR
    return (GOOD, POOR, MATCHED) if gravest == "leaks" else (POOR, GOOD, MATCHED)


MEANINGS = {
    "Recognizable": "an SSIM of {ssim:g} or more (PSNR of {psnr:g} dB where images are too small for SSIM), and better "
    "than a guess without the update.",
    "Recovered": "a PSNR of {recovered:g} dB or more.",
    "Gain": "decibels above the best guess without the update: each image's mean color, the mean color of public "
    "photographs, or what the same attack makes of pure noise.",
    "Mismatch": "how much of the update an attack's images leave unexplained, by its own replay: 0 is all explained, 1 "
    "nothing. Compare it within one attack.",
    "Floor": "the same at the private images: below it, an attack fits something else than the truth.",
}
