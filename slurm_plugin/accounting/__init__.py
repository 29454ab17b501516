"""Slurm's accounting: reading its jobs, and writing summaries."""
