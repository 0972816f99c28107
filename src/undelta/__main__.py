"""``python -m undelta``."""

from undelta.cli import main

main()
