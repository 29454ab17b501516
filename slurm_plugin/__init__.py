"""Where Slurm calls us, and where we read Slurm."""
