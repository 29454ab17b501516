"""Random scenarios that nobody tuned anything for, through the what-if engine."""
