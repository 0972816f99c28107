"""The only place where truth and guess meet."""
