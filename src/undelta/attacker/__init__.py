"""The attacker's side: knows an Observation, nothing else."""
