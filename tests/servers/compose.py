"""What compose.yaml and Dockerfile say: services, commands, environments and health checks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
IMAGE = "tokenloom:"  # the beginning of the name of the image that Dockerfile makes


def services() -> dict[str, dict[str, Any]]:
    """Return the services of compose.yaml by name."""
    found: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]
    return found


def command_of(service: dict[str, Any]) -> list[str]:
    """Return the command of a service; that of the image if it has none of its own."""
    return service.get("command") or _instruction("CMD")


def health_check_of(service: dict[str, Any]) -> list[str]:
    """Return the command of a service's health check, that of the image if it has none; [] if there is none."""
    own: dict[str, Any] = service.get("healthcheck", {})
    if own.get("disable"):
        return []
    if own:
        return list(own["test"][1:])
    return _instruction(r"HEALTHCHECK .*\\\n +CMD") if service["image"].startswith(IMAGE) else []


def _instruction(name: str) -> list[str]:
    (arguments,) = re.findall(rf"^{name} (\[.*\])$", DOCKERFILE, re.MULTILINE)
    return list(json.loads(arguments))


def environment_of_image() -> dict[str, str]:
    """Return the variables that the image sets."""
    (text,) = re.findall(r"^ENV ((?:.*\\\n)*.*)$", DOCKERFILE, re.MULTILINE)
    return dict(pair.split("=", 1) for pair in text.replace("\\\n", " ").split())
