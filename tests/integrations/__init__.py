"""Frameworks: what their servers and clients record."""
