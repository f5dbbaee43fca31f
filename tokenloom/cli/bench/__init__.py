"""`tokenloom bench`: measures how training processes get their batches."""
