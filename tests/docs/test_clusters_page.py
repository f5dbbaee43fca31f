"""The manifests and requests of the page on clusters have the schemas of Kubernetes and AWS Batch; nothing is sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.docs.walk import files

_PAGE = "docs/guides/clusters.md"
_JOB_SCHEMA = json.loads((Path(__file__).parent / "kubernetes_job.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["share.yaml", "publish.yaml"])
def test_a_manifest_is_a_job_of_kubernetes(name: str) -> None:
    manifest = yaml.safe_load(files(_PAGE)[name])
    jsonschema.validate(manifest, _JOB_SCHEMA, jsonschema.Draft202012Validator)
    # What the server demands beyond its schema.
    pod = manifest["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    assert {volume["name"] for volume in pod["volumes"]} == {
        mount["name"] for mount in pod["containers"][0]["volumeMounts"]
    }


def test_the_indexed_job_runs_as_many_shares_as_its_command_says_and_ignores_75() -> None:
    spec = yaml.safe_load(files(_PAGE)["share.yaml"])["spec"]
    assert spec["completionMode"] == "Indexed"
    command = spec["template"]["spec"]["containers"][0]["command"][-1]
    assert command.endswith(f'--share "$JOB_COMPLETION_INDEX/{spec["completions"]}"')
    rules = spec["podFailurePolicy"]["rules"]
    assert rules[0] == {"action": "Ignore", "onExitCodes": {"operator": "In", "values": [75, 143]}}


@pytest.mark.parametrize("wrong", [{"completion": 8}, {"completions": "8"}, {"podFailurePolicy": {"rules": [{}]}}])
def test_the_schema_refuses_what_the_server_would(wrong: dict[str, Any]) -> None:
    manifest = yaml.safe_load(files(_PAGE)["share.yaml"])
    manifest["spec"] |= wrong
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(manifest, _JOB_SCHEMA, jsonschema.Draft202012Validator)


def test_the_requests_are_those_of_aws_batch_and_each_array_waits_for_the_one_before() -> None:
    boto3 = pytest.importorskip("boto3")
    from botocore.stub import Stubber

    names: dict[str, Any] = {"__name__": "submit_batch"}
    exec(compile(files(_PAGE)["submit_batch.py"], "submit_batch.py", "exec"), names)
    batch = boto3.client("batch", "us-east-1", aws_access_key_id="none", aws_secret_access_key="none")
    sent: list[dict[str, Any]] = []
    batch.meta.events.register("provide-client-params.batch.SubmitJob", lambda params, **_: sent.append(params))
    with Stubber(batch) as stub:  # which validates what would be sent
        for number in range(3):
            stub.add_response("submit_job", {"jobName": "news", "jobId": f"job-{number}"})
        assert names["submit_build"](batch) == "job-2"
    assert [request["dependsOn"] for request in sent] == [[], [{"jobId": "job-0"}], [{"jobId": "job-1"}]]
    assert [request.get("arrayProperties") for request in sent] == [{"size": 8}, {"size": 8}, None]
    model = batch.meta.service_model.operation_model("SubmitJob").input_shape
    for request in sent:
        _check_choices(model, request)


def _check_choices(shape: Any, value: Any) -> None:
    """Check the values that must be one of a few, which botocore leaves to the service."""
    if shape.type_name == "structure":
        for name, part in value.items():
            _check_choices(shape.members[name], part)
    elif shape.type_name == "list":
        for part in value:
            _check_choices(shape.member, part)
    assert value in getattr(shape, "enum", ()) or [value]
