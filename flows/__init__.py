"""The order of the steps, with Prefect and without."""
