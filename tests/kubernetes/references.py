"""What no schema sees: do the parts of the manifests fit one another, the programs and the images?

Each check yields its problems, one line each.
"""
import re

import yaml

from manifests import has_port, mounted_files, name_of, ports_of

# Secrets that the operator makes, and their keys. deploy/kubernetes/README.md says how.
OPERATOR_SECRETS = {"blockd-tls": {"tls.crt", "tls.key", "ca.crt"}}
# Pods of others that may reach ours.
FOREIGN_LABELS = ({"app.kubernetes.io/name": "prometheus"}, {"blockd-client": "true"})
# Labels that Prometheus adds, with the values that the manifests give them.
SCRAPE_LABELS = {"job": {"blockd"}, "namespace": {"blockd"}}
UNITS = {"Mi": 2**20, "Gi": 2**30, "MiB": 2**20, "GiB": 2**30}


def amount(text):
    number, unit = re.fullmatch(r"(\d+)([A-Za-z]+)", text).groups()
    return int(number) * UNITS[unit]


def seconds(text):
    return int(re.fullmatch(r"(\d+)s", text).group(1))


def flags_of(container):
    """--name=value of a container's arguments, as name -> value."""
    found = {}
    for argument in container.get("args", []):
        name, _, value = argument.partition("=")
        found[name.removeprefix("--")] = value
    return found


def selector_problems(manifests):
    """Every selector finds pods, and no workload's pods are found by another workload."""
    for each in manifests.workloads():
        labels = each["spec"]["selector"]["matchLabels"]
        found = manifests.selected(labels)
        if found != [each]:
            yield f"{name_of(each)}: its selector finds {[name_of(one) for one in found]}"
        for spread in each["spec"]["template"]["spec"].get("topologySpreadConstraints", []):
            if manifests.selected(spread["labelSelector"]["matchLabels"]) != [each]:
                yield f"{name_of(each)}: spreads other pods than its own"
    for each in manifests.of_kind("Service"):
        if len(manifests.selected(each["spec"]["selector"])) != 1:
            yield f"{name_of(each)}: selects the pods of not one workload"
    for each in manifests.of_kind("PodDisruptionBudget"):
        found = manifests.selected(each["spec"]["selector"]["matchLabels"])
        if len(found) != 1:
            yield f"{name_of(each)}: selects the pods of not one workload"
        if each["spec"].get("maxUnavailable", 0) < 1:
            yield f"{name_of(each)}: no node can be drained"
    guarded = [manifests.selected(each["spec"]["selector"]["matchLabels"])
               for each in manifests.of_kind("PodDisruptionBudget")]
    for each in manifests.workloads():
        if [each] not in guarded:
            yield f"{name_of(each)}: has no PodDisruptionBudget"


def network_problems(manifests):
    """Every pod has a policy for both directions; peers and ports are there."""
    closed = []
    for policy in manifests.of_kind("NetworkPolicy"):
        spec = policy["spec"]
        own = manifests.selected(spec["podSelector"]["matchLabels"])
        if set(spec["policyTypes"]) == {"Ingress", "Egress"}:
            closed += own
        if not own:
            yield f"{name_of(policy)}: selects no pod"
        for rule in spec.get("ingress", []):
            if not rule.get("from"):
                yield f"{name_of(policy)}: lets everybody in"
            for peer in rule.get("from", []):
                labels = peer["podSelector"]["matchLabels"]
                if not manifests.selected(labels) and labels not in FOREIGN_LABELS:
                    yield f"{name_of(policy)}: no pod has the labels {labels}"
            for port in rule["ports"]:
                if not all(has_port(each, port["port"]) for each in own):
                    yield f"{name_of(policy)}: no port {port['port']}"
        for rule in spec.get("egress", []):
            peers = [one for peer in rule.get("to", [])
                     for one in manifests.selected(peer["podSelector"]["matchLabels"])]
            if not rule.get("to") and {port["port"] for port in rule["ports"]} != {53}:
                yield f"{name_of(policy)}: lets out to everywhere"
            if rule.get("to") and not peers:
                yield f"{name_of(policy)}: egress to no pod"
            for port in rule["ports"]:
                if not all(has_port(each, port["port"]) for each in peers):
                    yield f"{name_of(policy)}: no port {port['port']}"
    for each in manifests.workloads():
        if each not in closed:
            yield f"{name_of(each)}: no NetworkPolicy closes both directions"


def port_problems(manifests):
    """Ports that Services, probes and monitors name are ports of the pods."""
    for service in manifests.of_kind("Service"):
        for workload in manifests.selected(service["spec"]["selector"]):
            for port in service["spec"]["ports"]:
                target = port["targetPort"]
                if not has_port(workload, target):
                    yield f"{name_of(service)}: {name_of(workload)} has no port {target}"
    for workload, container in manifests.containers():
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            for way in ("grpc", "httpGet", "tcpSocket"):
                port = container.get(probe, {}).get(way, {}).get("port")
                if port is not None and not has_port(workload, port):
                    yield f"{name_of(workload)}: {probe} asks at {port}, which is no port"
        if "readinessProbe" not in container or "livenessProbe" not in container:
            yield f"{name_of(workload)}: a probe is missing"


def monitor_problems(monitoring, manifests):
    """The ServiceMonitor finds one Service with its port, and names the job as the alerts do."""
    for monitor in monitoring.of_kind("ServiceMonitor"):
        labels = monitor["spec"]["selector"]["matchLabels"]
        services = [each for each in manifests.of_kind("Service")
                    if labels.items() <= each["metadata"]["labels"].items()]
        if len(services) != 1:
            yield f"{name_of(monitor)}: finds {len(services)} Services"
        for service in services:
            for endpoint in monitor["spec"]["endpoints"]:
                if endpoint["port"] not in {port["name"] for port in service["spec"]["ports"]}:
                    yield f"{name_of(monitor)}: {name_of(service)} has no port {endpoint['port']}"
            job = service["metadata"]["labels"].get(monitor["spec"]["jobLabel"])
            if job not in SCRAPE_LABELS["job"]:
                yield f"{name_of(monitor)}: the job would be {job}"


def object_problems(manifests):
    """Objects that are named are there: Services, accounts, volumes, targets of the autoscaler."""
    for workload in manifests.workloads():
        spec = workload["spec"]["template"]["spec"]
        if not manifests.find("ServiceAccount", spec["serviceAccountName"]):
            yield f"{name_of(workload)}: no ServiceAccount {spec['serviceAccountName']}"
        volumes = {each["name"]: each for each in spec.get("volumes", [])}
        for volume in volumes.values():
            config = volume.get("configMap", {}).get("name")
            secret = volume.get("secret", {}).get("secretName")
            if config and not manifests.find("ConfigMap", config):
                yield f"{name_of(workload)}: no ConfigMap {config}"
            if secret and secret not in OPERATOR_SECRETS:
                yield f"{name_of(workload)}: no Secret {secret}"
        for container in spec["containers"]:
            mounts = {each["name"] for each in container.get("volumeMounts", [])}
            if mounts != set(volumes):
                yield f"{name_of(workload)}: volumes {sorted(volumes)}, mounted {sorted(mounts)}"
    for each in manifests.of_kind("StatefulSet"):
        service = manifests.find("Service", each["spec"]["serviceName"])
        if not service or service["spec"].get("clusterIP") != "None":
            yield f"{name_of(each)}: no headless Service {each['spec']['serviceName']}"
    for each in manifests.of_kind("ScaledObject", "HorizontalPodAutoscaler"):
        target = each["spec"]["scaleTargetRef"]
        scaled = manifests.find(target["kind"], target["name"])
        if not scaled:
            yield f"{name_of(each)}: no {target['kind']} {target['name']}"
        elif "replicas" in scaled["spec"]:
            yield f"{name_of(each)}: {name_of(scaled)} sets its replicas too"


def security_problems(manifests):
    """Nobody is root, writes its root file system, has capabilities or a token."""
    for workload, container in manifests.containers():
        pod = workload["spec"]["template"]["spec"]
        context, own = pod["securityContext"], container["securityContext"]
        wanted = {
            "runs as root": context["runAsNonRoot"] is True and context["runAsUser"] == 10001,
            "has no seccomp profile": context["seccompProfile"]["type"] == "RuntimeDefault",
            "may gain privileges": own["allowPrivilegeEscalation"] is False,
            "writes its root": own["readOnlyRootFilesystem"] is True,
            "has capabilities": own["capabilities"] == {"drop": ["ALL"]},
            "has a token": pod["automountServiceAccountToken"] is False,
            "may take all of the memory": "memory" in container["resources"]["limits"],
        }
        for problem, fine in wanted.items():
            if not fine:
                yield f"{name_of(workload)}: {problem}"


def program_problems(manifests, help_texts):
    """Flags of blockd and blockctl exist, their files are mounted, there is time to drain."""
    for workload, container in manifests.containers():
        grace = workload["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        stop = " ".join(container.get("lifecycle", {}).get("preStop", {}).get("exec", {})
                        .get("command", []))
        waits = sum(int(each) for each in re.findall(r"sleep (\d+)", stop))
        if container["name"] == "blockd":
            flags = flags_of(container)
            waits += seconds(flags.get("drain_timeout", "30s"))
            waits += seconds(flags.get("drain_grace", "5s"))
            yield from flag_problems(workload, container["args"], help_texts["blockd"], "args")
            yield from access_problems(workload, container, flags)
            if flags.get("backend") == "cpu":
                limit = amount(container["resources"]["limits"]["memory"])
                # By default an eighth each for requests under way and for gRPC's buffers.
                if amount(flags["device_memory"]) + limit // 4 + 2**30 > limit:
                    yield f"{name_of(workload)}: --device_memory leaves too little of {limit} bytes"
        if grace <= waits:
            yield f"{name_of(workload)}: is killed after {grace} s, but needs {waits} s to stop"
        files = mounted_files(manifests, workload, container, OPERATOR_SECRETS)
        commands = [container.get(probe, {}).get("exec", {}).get("command", [])
                    for probe in ("startupProbe", "readinessProbe", "livenessProbe")]
        for command in commands:
            if command and command[0] != "blockctl":
                yield f"{name_of(workload)}: {command[0]} is not in the image"
            yield from flag_problems(workload, command[1:], help_texts["blockctl"], "probe")
        for argument in [*container.get("args", []), *sum(commands, [])]:
            for path in re.findall(r"/etc/[\w./-]+", argument):
                if path not in files:
                    yield f"{name_of(workload)}: {path} is not mounted"


def access_problems(workload, container, flags):
    """The server says whom it trusts, and probes ask where they are understood."""
    tls = "tls_cert_file" in flags
    if not ("tls_client_ca_file" in flags or flags.get("trust_caller_metadata") == "true"
            or (tls and "tenants_file" in flags)):
        yield f"{name_of(workload)}: blockd does not start where nobody can say who asks"
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        port = container.get(probe, {}).get("grpc", {}).get("port")
        if tls and port is not None and str(port) != flags.get("health_port"):
            yield f"{name_of(workload)}: {probe} asks at {port}, which speaks TLS: see --health_port"


def flag_problems(workload, arguments, help_text, where):
    for argument in arguments:
        name = argument.partition("=")[0]
        if argument.startswith("--") and not re.search(rf"^\s*{name}\b(?!-)", help_text, re.M):
            yield f"{name_of(workload)}: {where}: no flag {name}"


def image_problems(manifests, dockerfile):
    """Our images are targets of the Dockerfile, and the GPU that they need is asked for."""
    targets = set(re.findall(r"^FROM .+ AS (\w+)$", dockerfile, re.M))
    gpus = {"cpu": None, "cuda": "nvidia.com/gpu", "rocm": "amd.com/gpu"}
    for workload, container in manifests.containers():
        image, _, tag = container["image"].rpartition(":")
        if container["name"] != "blockd":
            continue
        if image != "blockd" or tag not in targets or tag not in gpus:
            yield f"{name_of(workload)}: {container['image']} is no target of the Dockerfile"
            continue
        limits = container["resources"]["limits"]
        asked = [each for each in gpus.values() if each in limits]
        if asked != [each for each in [gpus[tag]] if each]:
            yield f"{name_of(workload)}: {container['image']} with {asked}"
        if flags_of(container).get("backend") != tag:
            yield f"{name_of(workload)}: {container['image']} with another --backend"


def router_problems(manifests):
    """Envoy listens where the pod says, asks the servers' Service, and has its files."""
    for workload, container in manifests.containers():
        if container["name"] != "envoy":
            continue
        config = manifests.find("ConfigMap", next(
            each["configMap"]["name"] for each in workload["spec"]["template"]["spec"]["volumes"]
            if "configMap" in each))
        if not config:
            return  # object_problems says so
        envoy = yaml.safe_load(config["data"]["envoy.yaml"])
        listeners = {each["name"]: each["address"]["socket_address"]["port_value"]
                     for each in envoy["static_resources"]["listeners"]}
        if sorted(listeners.values()) != sorted(ports_of(workload).values()):
            yield f"{name_of(workload)}: Envoy listens on {listeners}"
        admin = envoy["admin"]["address"]["socket_address"]
        if admin["address"] != "127.0.0.1":
            yield f"{name_of(workload)}: Envoy's admin port is open"
        stop = container["lifecycle"]["preStop"]["exec"]["command"][-1]
        if f"/127.0.0.1/{admin['port_value']} " not in stop:
            yield f"{name_of(workload)}: preStop does not ask Envoy's admin port"
        for cluster in yaml.safe_load(config["data"]["clusters.yaml"])["resources"]:
            for group in cluster["load_assignment"]["endpoints"]:
                for endpoint in group["lb_endpoints"]:
                    address = endpoint["endpoint"]["address"]["socket_address"]
                    service = manifests.find("Service", address["address"])
                    ports = service["spec"]["ports"] if service else []
                    if address["port_value"] not in {port["port"] for port in ports}:
                        yield f"{name_of(workload)}: no Service at {address}"
        files = mounted_files(manifests, workload, container, OPERATOR_SECRETS)
        text = "".join(yaml.safe_dump(yaml.safe_load(each)) for each in config["data"].values())
        for path in re.findall(r"(?:filename|path): (/etc/[\w./-]+\.\w+)", text):
            if path not in files:
                yield f"{name_of(workload)}: {path} is not mounted"


def query_problems(query, series):
    """Metrics and label values of a query are ones that the server shows."""
    pairs = re.findall(r"\b(blockd_\w+|up)\b(?:\{([^}]*)\})?", query)
    if not pairs:
        yield f"no metric in {query}"
    for metric, labels in pairs:
        known = [each for name, each in series if name == metric]
        if metric != "up" and not known:
            yield f"the server has no metric {metric}"
        for label, value in re.findall(r'(\w+)="([^"]*)"', labels):
            if label in SCRAPE_LABELS:
                if value not in SCRAPE_LABELS[label]:
                    yield f"{metric} never has {label}={value}"
            elif known and value not in {each.get(label) for each in known}:
                yield f"{metric} never has {label}={value}"


def rules_problems(monitoring, series):
    for rule in monitoring.of_kind("PrometheusRule"):
        for group in rule["spec"]["groups"]:
            for alert in group["rules"]:
                for problem in query_problems(alert["expr"], series):
                    yield f"alert {alert['alert']}: {problem}"


def scaling_problems(manifests, series):
    for scaled in manifests.of_kind("ScaledObject"):
        if scaled["spec"]["minReplicaCount"] < 2:
            yield f"{name_of(scaled)}: one server is no reserve for another"
        for trigger in scaled["spec"]["triggers"]:
            for problem in query_problems(trigger["metadata"]["query"], series):
                yield f"{name_of(scaled)}: {problem}"
