"""`tokenloom up` and `build`: the Prefect server, its processes, folders and deployments."""
