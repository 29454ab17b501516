"""A private, real Slurm cluster with simulated cards on one machine (docs/sandbox.md)."""
