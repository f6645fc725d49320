"""What deploy/kubernetes renders to is right, and the checks that say so find planted mistakes."""
import copy
import pathlib
import shutil
import tempfile
import unittest

import copies
import references
from manifests import Manifests, render, without_hashes
from programs import BIN, KUBECTLS, KUBERNETES, PROMTOOL, ROOT, exported_series, output
from schemas import schema_problems

OVERLAYS = ("cpu", "cuda", "rocm", "tls", "autoscaling")
KINDS = ("cpu", "cuda", "rocm")


class World:
    """What the manifests are compared with; made once."""

    def __init__(self):
        self.overlays = {name: render(KUBECTLS[0], KUBERNETES / "overlays" / name)
                         for name in OVERLAYS}
        self.monitoring = render(KUBECTLS[0], KUBERNETES / "monitoring")
        self.series = exported_series()
        self.dockerfile = (ROOT / "Dockerfile").read_text()
        self.help_texts = {"blockd": output(BIN / "blockd", "--help"),
                           "blockctl": output(BIN / "blockctl", "--help")}

    def problems(self, overlay, monitoring):
        """Of an overlay and the monitoring beside it."""
        manifests, beside = Manifests(overlay), Manifests(monitoring)
        found = [line for each in overlay + monitoring for line in schema_problems(each)]
        for check in (references.selector_problems, references.network_problems,
                      references.port_problems, references.object_problems,
                      references.security_problems, references.router_problems):
            found += check(manifests)
        found += references.monitor_problems(beside, manifests)
        found += references.program_problems(manifests, self.help_texts)
        found += references.image_problems(manifests, self.dockerfile)
        found += references.rules_problems(beside, self.series)
        found += references.scaling_problems(manifests, self.series)
        return found


WORLD = World()


class Rendered(unittest.TestCase):
    def test_every_overlay_is_without_problems(self):
        for name in OVERLAYS:
            with self.subTest(name):
                self.assertEqual(WORLD.problems(WORLD.overlays[name], WORLD.monitoring), [])

    def test_every_kubectl_renders_the_same(self):
        for kubectl in KUBECTLS[1:]:
            for name, first in [*WORLD.overlays.items(), ("../monitoring", WORLD.monitoring)]:
                with self.subTest(kubectl=kubectl, overlay=name):
                    other = render(kubectl, KUBERNETES / "overlays" / name)
                    self.assertEqual(without_hashes(other), without_hashes(first))

    def test_tls_and_autoscaling_go_with_every_kind_of_node_and_with_each_other(self):
        for name, kinds in (("tls", (*KINDS, "autoscaling")), ("autoscaling", (*KINDS, "tls"))):
            for kind in kinds:
                with self.subTest(overlay=name, kind=kind), tempfile.TemporaryDirectory() as folder:
                    deploy = pathlib.Path(folder) / "deploy"
                    shutil.copytree(ROOT / "deploy", deploy)
                    changed = deploy / "kubernetes" / "overlays" / name
                    file = changed / "kustomization.yaml"
                    text = file.read_text()
                    self.assertEqual(text.count("  - ../cuda\n"), 1)
                    file.write_text(text.replace("  - ../cuda\n", f"  - ../{kind}\n"))
                    made = render(KUBECTLS[-1], changed)
                    self.assertEqual(WORLD.problems(made, WORLD.monitoring), [])

    def test_the_router_has_the_configuration_of_deploy_router(self):
        for name in OVERLAYS:
            folder = KUBERNETES / "overlays/tls" if name == "tls" else ROOT / "deploy/router"
            config, = Manifests(WORLD.overlays[name]).of_kind("ConfigMap")
            for file, text in config["data"].items():
                with self.subTest(overlay=name, file=file):
                    self.assertEqual(text, (folder / file).read_text())

    def test_copies_are_what_they_are_made_of(self):
        self.assertEqual(copies.out_of_date(), [], "run tests/kubernetes/copies.py")

    def test_the_rules_fire_and_rest_as_they_should(self):
        output(PROMTOOL, "check", "rules", ROOT / "deploy/prometheus/blockd.rules.yml")
        output(PROMTOOL, "test", "rules", ROOT / "tests/kubernetes/rules_test.yml")

    def test_the_runbook_has_every_alert(self):
        runbook = (ROOT / "deploy/README.md").read_text()
        for rule in Manifests(WORLD.monitoring).of_kind("PrometheusRule"):
            for alert in rule["spec"]["groups"][0]["rules"]:
                self.assertIn(f"`{alert['alert']}`", runbook)

    def test_the_readme_says_how_to_make_each_secret(self):
        text = (KUBERNETES / "README.md").read_text()
        for secret, keys in references.OPERATOR_SECRETS.items():
            for word in (secret, *keys):
                self.assertIn(word, text)


def container_of(overlay, kind, name):
    return Manifests(overlay).find(kind, name)["spec"]["template"]["spec"]["containers"][0]


class Planted(unittest.TestCase):
    """Each test makes one mistake in a copy and reads what is said about it."""

    def setUp(self):
        self.overlay = copy.deepcopy(WORLD.overlays["cpu"])
        self.monitoring = copy.deepcopy(WORLD.monitoring)

    def plant(self, kind, name):
        return Manifests(self.overlay + self.monitoring).find(kind, name)

    def server(self):
        return container_of(self.overlay, "StatefulSet", "blockd")

    def router(self):
        return container_of(self.overlay, "Deployment", "blockd-router")

    def assert_said(self, *words):
        said = WORLD.problems(self.overlay, self.monitoring)
        for word in words:
            self.assertTrue(any(word in line for line in said), f"{word!r} not in {said}")

    def use(self, name):
        self.overlay = copy.deepcopy(WORLD.overlays[name])

    def test_an_unknown_field(self):
        self.plant("StatefulSet", "blockd")["spec"]["minReadySecond"] = 3
        self.assert_said("'minReadySecond' was unexpected")

    def test_a_field_that_one_old_version_does_not_have(self):
        self.server()["lifecycle"] = {"preStop": {"sleep": {"seconds": 5}}}
        self.assert_said("Kubernetes 1.27: ")

    def test_a_number_for_a_word(self):
        self.server()["args"].append(7)
        self.assertIn("7 is not of type", str(schema_problems(self.plant("StatefulSet", "blockd"))))

    def test_an_unknown_kind(self):
        self.plant("PodDisruptionBudget", "blockd")["apiVersion"] = "policy/v2"
        self.assert_said("Couldn't find schema")

    def test_an_unknown_field_of_a_monitor(self):
        self.plant("ServiceMonitor", "blockd")["spec"]["endpoints"][0]["prot"] = "metrics"
        self.assert_said("'prot' was unexpected")

    def test_a_rule_without_its_expression(self):
        del self.plant("PrometheusRule", "blockd")["spec"]["groups"][0]["rules"][0]["expr"]
        said = schema_problems(self.plant("PrometheusRule", "blockd"))
        self.assertIn("'expr' is a required property", str(said))

    def test_a_word_for_a_number_in_the_autoscaler(self):
        self.use("autoscaling")
        self.plant("ScaledObject", "blockd")["spec"]["pollingInterval"] = "often"
        self.assert_said("'often' is not of type 'integer'")

    def test_a_label_that_no_selector_knows(self):
        labels = self.plant("StatefulSet", "blockd")["spec"]["template"]["metadata"]["labels"]
        labels["app.kubernetes.io/component"] = "serve"
        self.assert_said("StatefulSet blockd: its selector finds []",
                         "Service blockd-pods: selects the pods of not one workload",
                         "StatefulSet blockd: has no PodDisruptionBudget",
                         "StatefulSet blockd: no NetworkPolicy closes both directions")

    def test_a_service_that_selects_too_much(self):
        del self.plant("Service", "blockd")["spec"]["selector"]["app.kubernetes.io/component"]
        self.assert_said("Service blockd: selects the pods of not one workload")

    def test_a_port_that_is_not_there(self):
        self.plant("Service", "blockd-pods")["spec"]["ports"][1]["targetPort"] = "metric"
        self.server()["readinessProbe"]["grpc"]["port"] = 7171
        self.assert_said("no port metric", "readinessProbe asks at 7171")

    def test_a_monitor_that_finds_no_service_or_no_port(self):
        monitor = self.plant("ServiceMonitor", "blockd")
        monitor["spec"]["endpoints"][0]["port"] = "metric"
        self.assert_said("has no port metric")
        monitor["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"] = "serve"
        self.assert_said("finds 0 Services")

    def test_a_monitor_whose_job_the_alerts_do_not_know(self):
        self.plant("ServiceMonitor", "blockd")["spec"]["jobLabel"] = "app.kubernetes.io/component"
        self.assert_said("the job would be server")

    def test_a_flag_that_blockd_does_not_have(self):
        self.server()["args"].append("--drain=30s")
        self.assert_said("no flag --drain")

    def test_a_flag_that_the_probe_does_not_have(self):
        self.server()["livenessProbe"] = {"exec": {"command": ["blockctl", "--tls_ca=x", "info"]}}
        self.assert_said("probe: no flag --tls_ca")

    def test_a_probe_that_speaks_no_tls(self):
        self.use("tls")
        self.server()["livenessProbe"]["grpc"]["port"] = 7117
        self.assert_said("livenessProbe asks at 7117, which speaks TLS")

    def test_a_server_that_trusts_nobody(self):
        args = self.server()["args"]
        args.remove("--trust_caller_metadata=true")
        self.assert_said("blockd does not start where nobody can say who asks")

    def test_a_certificate_that_is_not_mounted(self):
        self.use("tls")
        self.server()["volumeMounts"][0]["mountPath"] = "/etc/tls"
        self.assert_said("/etc/blockd/tls/tls.crt is not mounted")

    def test_a_drain_longer_than_the_grace_period(self):
        args = self.server()["args"]
        args[args.index("--drain_timeout=30s")] = "--drain_timeout=45s"
        self.assert_said("is killed after 45 s, but needs 50 s to stop")

    def test_memory_that_leaves_no_room(self):
        args = self.server()["args"]
        args[args.index("--device_memory=10GiB")] = "--device_memory=12GiB"
        self.assert_said("--device_memory leaves too little")

    def test_an_image_that_nobody_builds(self):
        self.server()["image"] = "blockd:gpu"
        self.assert_said("blockd:gpu is no target of the Dockerfile")

    def test_an_image_for_gpus_without_one(self):
        self.use("cuda")
        del self.server()["resources"]["limits"]["nvidia.com/gpu"]
        self.assert_said("blockd:cuda with []")

    def test_a_volume_that_is_not_mounted_or_not_there(self):
        self.router()["volumeMounts"][0]["name"] = "confg"
        self.assert_said("mounted ['confg']", "/etc/envoy/envoy.yaml is not mounted")

    def test_a_configuration_that_is_not_there(self):
        pod = self.plant("Deployment", "blockd-router")["spec"]["template"]["spec"]
        pod["volumes"][0]["configMap"]["name"] = "blockd-router"
        self.assert_said("no ConfigMap blockd-router")

    def test_a_router_that_asks_for_another_service(self):
        config, = Manifests(self.overlay).of_kind("ConfigMap")
        config["data"]["clusters.yaml"] = config["data"]["clusters.yaml"].replace(
            "address: blockd-pods", "address: blockd-server")
        self.assert_said("no Service at {'address': 'blockd-server'")

    def test_a_router_that_listens_elsewhere(self):
        self.router()["ports"][0]["containerPort"] = 7177
        self.assert_said("Envoy listens on")

    def test_a_set_without_its_service(self):
        self.plant("StatefulSet", "blockd")["spec"]["serviceName"] = "blockd"
        self.assert_said("no headless Service blockd")

    def test_an_autoscaler_of_nothing_and_one_with_a_rival(self):
        self.use("autoscaling")
        self.plant("StatefulSet", "blockd")["spec"]["replicas"] = 2
        self.assert_said("StatefulSet blockd sets its replicas too")
        self.plant("ScaledObject", "blockd")["spec"]["scaleTargetRef"]["kind"] = "Deployment"
        self.assert_said("no Deployment blockd")

    def test_a_metric_that_the_server_does_not_have(self):
        rules = self.plant("PrometheusRule", "blockd")["spec"]["groups"][0]["rules"]
        rules[1]["expr"] = "blockd_health == 0"
        rules[2]["expr"] = 'rate(blockd_requests_total{status="BUSY"}[5m]) > 0'
        rules[3]["expr"] = "1 > 0"
        self.assert_said("the server has no metric blockd_health",
                         "blockd_requests_total never has status=BUSY", "no metric in 1 > 0")

    def test_an_autoscaler_that_asks_for_no_metric(self):
        self.use("autoscaling")
        trigger = self.plant("ScaledObject", "blockd")["spec"]["triggers"][0]
        trigger["metadata"]["query"] = "sum(rate(blockd_busy_seconds_total[2m]))"
        self.assert_said("the server has no metric blockd_busy_seconds_total")

    def test_an_open_policy(self):
        policy = self.plant("NetworkPolicy", "blockd")
        del policy["spec"]["ingress"][0]["from"]
        self.assert_said("lets everybody in")
        policy["spec"]["policyTypes"] = ["Ingress"]
        self.assert_said("StatefulSet blockd: no NetworkPolicy closes both directions")

    def test_a_policy_for_a_router_that_is_not_there(self):
        peer = self.plant("NetworkPolicy", "blockd")["spec"]["ingress"][0]["from"][0]
        peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] = "envoy"
        self.assert_said("no pod has the labels")

    def test_a_container_that_may_write_its_root(self):
        self.server()["securityContext"]["readOnlyRootFilesystem"] = False
        self.assert_said("StatefulSet blockd: writes its root")

    def test_a_budget_that_stops_every_drain(self):
        self.plant("PodDisruptionBudget", "blockd")["spec"]["maxUnavailable"] = 0
        self.assert_said("no node can be drained")


if __name__ == "__main__":
    unittest.main()
