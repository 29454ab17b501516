"""Figures: each names its target, the number of runs and the noise of the machine beside it."""
