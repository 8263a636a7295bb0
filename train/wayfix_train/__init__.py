"""Training of search policies: environments, rewards, demonstrations, SFT and GRPO."""
