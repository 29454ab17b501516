"""Slurm's accounting: where its jobs come from, and what we write there."""
