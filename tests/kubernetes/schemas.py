"""Does Kubernetes know every field, and does each have the right type?"""
import functools
import importlib
import json

import jsonschema
import kubernetes_validate

# The oldest version with all that is used (gRPC probes), and the newest that the package has.
VERSIONS = ("1.27", "1.37")

# Kinds that are not Kubernetes' own -> the module with their published definitions.
OPERATORS = {
    ("monitoring.coreos.com/v1", "ServiceMonitor"): "cloudcoil.models.prometheus_operator.v1",
    ("monitoring.coreos.com/v1", "PrometheusRule"): "cloudcoil.models.prometheus_operator.v1",
    ("keda.sh/v1alpha1", "ScaledObject"): "cloudcoil.models.keda.v1alpha1",
}


def close(schema):
    """Makes a schema strict: unknown fields fail, and null is no value."""
    if isinstance(schema, list):
        return [close(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: close(value) for key, value in schema.items()}
    if isinstance(closed.get("properties"), dict) and "additionalProperties" not in closed:
        closed["additionalProperties"] = False
    if isinstance(closed.get("anyOf"), list):
        closed["anyOf"] = [each for each in closed["anyOf"] if each != {"type": "null"}]
        if len(closed["anyOf"]) == 1:  # so that a message says what is wrong in it
            closed.update(*closed.pop("anyOf"))
    return closed


@functools.cache
def operator_schema(api_version, kind):
    module = importlib.import_module(OPERATORS[api_version, kind])
    return close(getattr(module, kind).model_json_schema(by_alias=True))


def schema_problems(document):
    """What the schemas do not allow, one line each."""
    return problems_of(json.dumps(document))


@functools.cache
def problems_of(text):
    document = json.loads(text)
    kind = (document["apiVersion"], document["kind"])
    name = f"{document['kind']} {document['metadata']['name']}"
    if kind in OPERATORS:
        checker = jsonschema.Draft202012Validator(operator_schema(*kind))
        return [f"{name}: {each.json_path}: {each.message}"
                for each in checker.iter_errors(document)]
    problems = []
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            path = ".".join(str(each) for each in error.path)
            problems.append(f"{name}: Kubernetes {version}: {path}: {error.message}")
        except kubernetes_validate.SchemaNotFoundError as error:
            problems.append(f"{name}: {error.message}")
    return problems
