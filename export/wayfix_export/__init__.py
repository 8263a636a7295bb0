"""From a Qwen3-VL checkpoint to engines, with a proof that they still say what the checkpoint says."""
