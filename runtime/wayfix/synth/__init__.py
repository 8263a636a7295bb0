"""The procedural city: ground truth for the demo, the tests and the training."""
