"""Check a finished build, and make it visible as a version."""
