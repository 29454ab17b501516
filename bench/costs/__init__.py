"""What qgpu costs: programs, daemons, starts of jobs, submissions."""
