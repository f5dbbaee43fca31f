"""How tasks run: worker processes, batches of jobs, memory, progress, retries."""
