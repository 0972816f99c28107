"""Measure how much private training data a federated-learning update reveals."""

__version__ = "0.1.0"
