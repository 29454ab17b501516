"""What one job may do on the cards of one node, and how Slurm tells us of it."""
