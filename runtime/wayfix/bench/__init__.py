"""Latency measurement of all the above."""
