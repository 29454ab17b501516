"""The promises over a sweep of what the simulator assumes of cards and drivers."""
