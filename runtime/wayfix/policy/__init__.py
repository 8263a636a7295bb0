"""Who decides the next action of an episode."""
