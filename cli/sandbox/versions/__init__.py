"""Other versions of Slurm for the sandbox, and the live suite on each."""
