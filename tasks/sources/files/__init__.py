"""Files of sources: which ones a pattern matches, and their bytes as text."""
