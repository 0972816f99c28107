"""A Flower app: two clients with four photographs each train a small CNN, and undelta records their updates."""
