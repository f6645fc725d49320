"""Rendered manifests, as the checks look at them."""
import subprocess

import yaml

WORKLOADS = ("StatefulSet", "Deployment")


def render(kubectl, folder):
    """What `kubectl kustomize` makes of the folder. Raises what kubectl says where it refuses."""
    made = subprocess.run([kubectl, "kustomize", str(folder)], capture_output=True, text=True,
                          check=False)
    if made.returncode != 0:
        raise RuntimeError(f"{kubectl} kustomize {folder}: {made.stderr}")
    return [each for each in yaml.safe_load_all(made.stdout) if each]


def without_hashes(documents):
    """The same, with names of generated ConfigMaps as they are written and in a fixed order.

    Each version of kustomize hashes in its own way, writes objects in its own order, and some write
    empty maps of annotations and labels.
    """
    text = yaml.safe_dump(documents)
    for each in documents:
        if each["kind"] == "ConfigMap":
            name = each["metadata"]["name"]
            text = text.replace(name, name.rsplit("-", 1)[0])
    plain = yaml.safe_load(text)
    for each in plain:
        each["metadata"] = {key: value for key, value in each["metadata"].items() if value}
    return sorted(plain, key=lambda each: (each["kind"], each["metadata"]["name"]))


def name_of(document):
    return f"{document['kind']} {document['metadata']['name']}"


class Manifests:
    """Documents that are applied together."""

    def __init__(self, documents):
        self.documents = documents

    def of_kind(self, *kinds):
        return [each for each in self.documents if each["kind"] in kinds]

    def find(self, kind, name):
        for each in self.of_kind(kind):
            if each["metadata"]["name"] == name:
                return each
        return None

    def workloads(self):
        return self.of_kind(*WORKLOADS)

    def containers(self):
        """(workload, container) of every container."""
        for workload in self.workloads():
            for container in workload["spec"]["template"]["spec"]["containers"]:
                yield workload, container

    def selected(self, labels):
        """The workloads whose pods carry all of the labels."""
        return [each for each in self.workloads()
                if labels.items() <= each["spec"]["template"]["metadata"]["labels"].items()]


def ports_of(workload):
    """name -> number of the container ports."""
    return {port["name"]: port["containerPort"]
            for container in workload["spec"]["template"]["spec"]["containers"]
            for port in container["ports"]}


def has_port(workload, port):
    ports = ports_of(workload)
    return port in ports or port in ports.values()


def mounted_files(manifests, workload, container, operator_secrets):
    """Every file that a ConfigMap or a Secret puts into the container."""
    spec = workload["spec"]["template"]["spec"]
    volumes = {each["name"]: each for each in spec.get("volumes", [])}
    files = set()
    for mount in container.get("volumeMounts", []):
        volume = volumes.get(mount["name"], {})
        keys = set()
        if "configMap" in volume:
            config = manifests.find("ConfigMap", volume["configMap"]["name"])
            keys = set(config["data"]) if config else set()
        elif "secret" in volume:
            keys = operator_secrets.get(volume["secret"]["secretName"], set())
        files |= {f"{mount['mountPath']}/{key}" for key in keys}
    return files
