"""Grants: what one job may do on the cards of one node, and what Slurm tells of the job."""
