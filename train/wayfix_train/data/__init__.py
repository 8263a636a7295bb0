"""Training data: cities streamed by seed, the trajectories shown in them, and what a model reads of these."""
