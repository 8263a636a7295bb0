"""What can be looked at: zoom crops and oblique renders, and their caches."""
