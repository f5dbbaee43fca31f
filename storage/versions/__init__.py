"""Published versions, the tags that name them, and references to both."""
