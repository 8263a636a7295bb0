"""One sentence's search: the episode, the prompt protocol, the loop, its trace."""
