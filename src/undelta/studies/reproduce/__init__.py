"""The paper's tables and figures as data: each a list of trials, the published figures, and what they claim."""
