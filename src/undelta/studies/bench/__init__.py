"""A frozen benchmark that others can cite: the same observations for everybody's attack, and a leaderboard."""
