"""Tests of the tuning share a study and a cheap objective."""
