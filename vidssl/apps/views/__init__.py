"""Studies of what views share: colour spaces, learned views, coloured digits (Tian et al., 2020)."""
