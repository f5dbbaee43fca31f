"""What a release brings: the sdist, the wheel, and its installations on each Python."""
