"""Other frameworks: what their servers and clients hold becomes observation files. Never imported by the core."""
