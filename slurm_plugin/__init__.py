"""Code that Slurm calls, and code that reads Slurm."""
