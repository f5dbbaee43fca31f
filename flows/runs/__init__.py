"""What a flow run shows in Prefect: its name, log, progress, artifacts and events, and how it ended."""
