"""The Prefect server of `tokenloom up` and `tokenloom build`: its processes, folders and deployments."""
