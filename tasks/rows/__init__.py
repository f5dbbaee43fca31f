"""What becomes of a row: the rules of the spec, the quarantine, excluded contents."""
