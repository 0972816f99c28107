"""Measure how much private training data a federated-learning update reveals.

The names in ``__init__.pyi`` are all that most users need. They are loaded when first used, since torch takes seconds
to import and ``undelta --help`` does not need it. Code inside the package imports from the modules themselves.
"""

import lazy_loader

__version__ = "0.2.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
