"""The client's side: knows the truth. The attacker cannot import it."""
