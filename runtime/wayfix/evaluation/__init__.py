"""Accuracy: the papers' metrics on frozen and own suites, for any policy."""
