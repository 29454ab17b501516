"""Random scenarios, for which no constant was chosen, through the what-if engine."""
