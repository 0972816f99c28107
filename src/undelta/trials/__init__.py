"""Trials and their records: the stages of the data flow, run one after the other."""
