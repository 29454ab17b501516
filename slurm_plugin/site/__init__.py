"""A site's own Slurm configuration: read as Slurm reads it, and compared with what qgpu needs."""
