"""The three tools of a policy: argument models, execution, errors."""
