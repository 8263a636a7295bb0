"""One file per input format; each yields the same few plain types."""
