"""Other systems' words, one file each, and nowhere else."""
