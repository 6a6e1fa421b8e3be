"""Jobs on clusters: Slurm and Ray."""
