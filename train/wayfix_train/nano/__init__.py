"""The nano model: Qwen3-VL's own architecture, small enough to be trained on a laptop and shipped with the library."""
