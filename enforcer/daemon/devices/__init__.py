"""Which cards the processes of a job may open, after Slurm: for jobs that move to another card."""
