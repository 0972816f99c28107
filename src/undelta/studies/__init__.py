"""Questions asked of trials: attack one update, audit, defend, tune, reproduce."""
