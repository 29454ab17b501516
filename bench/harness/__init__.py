"""What every bench stands on: a node, its jobs, the machine, a figure."""
