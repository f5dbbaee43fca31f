"""What a build says when it ends, and why it could not build."""
