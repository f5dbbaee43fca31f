# An image for a Prefect server and for workers that build datasets: `docker build -t tokenloom:0.1.0 .` in a clone.
# docs/guides/teams.md#in-containers says how to use it, and what of it was run.
FROM python:3.11.15-slim-bookworm AS source
COPY . /source
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /source

FROM python:3.11.15-slim-bookworm
# pip also compiles what it installs, so that a process of a user who can't write there starts in half the time.
RUN --mount=type=bind,from=source,target=/from \
    pip install --no-cache-dir --constraint /from/source/constraints.txt "$(ls /from/wheels/tokenloom-*.whl)[build,s3]"
# A new volume at /data or /home/loom/.prefect belongs to whom the folder belongs to.
RUN useradd --create-home --uid 1000 loom && install --directory --owner=loom /data /home/loom/.prefect
USER loom
WORKDIR /data
ENV DO_NOT_TRACK=1 \
    PREFECT_HOME=/home/loom/.prefect \
    PREFECT_SERVER_ANALYTICS_ENABLED=false \
    PYTHONUNBUFFERED=1 \
    TOKENLOOM_CACHE=/data/cache \
    TOKENLOOM_HOME=/data
# Of the worker: it polled the server not long ago.
HEALTHCHECK --interval=15s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/health')"]
CMD ["prefect", "worker", "start", "--pool", "tokenloom", "--type", "process", "--limit", "2", "--install-policy", "never", "--with-healthcheck"]
