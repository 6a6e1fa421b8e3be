"""`python -m vidssl COMMAND …`, which is also what torchrun and srun start."""

from vidssl.cli import main

if __name__ == "__main__":
    main()
