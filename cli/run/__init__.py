"""`qgpu run`: a program under a grant, without Slurm."""
