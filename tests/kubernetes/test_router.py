"""The router as the manifests run it: the real Envoy with the rendered configuration."""
import json
import pathlib
import socket
import subprocess
import tempfile
import unittest
import urllib.error
import urllib.request

import yaml

from manifests import Manifests, render
from programs import BIN, ENVOY, KUBECTLS, KUBERNETES, Server, output, until


def rendered(overlay):
    return Manifests(render(KUBECTLS[0], KUBERNETES / "overlays" / overlay))


def get(address, path):
    """(status, text) of an HTTP GET."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


def make_certificates(folder):
    """An authority, a certificate for the name `blockd`, and one for each of two clients."""
    def openssl(*words):
        output("openssl", *words, cwd=folder)
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *new_key, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=ca")
    for name, subject, more in (("tls", "/CN=blockd", "subjectAltName=DNS:blockd"),
                                ("alice", "/CN=alice", "subjectAltName=DNS:alice.example"),
                                ("bob", "/CN=bob", "subjectAltName=DNS:bob.example"),
                                ("uri", "/CN=alice", "subjectAltName=URI:alice.example"),
                                ("email", "/CN=alice", "subjectAltName=email:alice.example"),
                                ("both", "/CN=x", "subjectAltName=DNS:alice.example,DNS:bob.example"),
                                ("none", "/CN=alice.example", "")):
        (folder / f"{name}.ext").write_text(more + "\n")
        openssl("req", *new_key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", subject)
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key",
                "-CAcreateserial", "-extfile", f"{name}.ext", "-out", f"{name}.crt")


class Router:
    """Envoy with an overlay's configuration; paths, ports and servers become this machine's."""

    def __init__(self, overlay, folder, server_port):
        self.manifests = rendered(overlay)
        config, = self.manifests.of_kind("ConfigMap")
        files = {}
        for name, text in config["data"].items():
            text = text.replace("/etc/blockd/tls", str(folder)).replace("/etc/envoy", str(folder))
            files[name] = yaml.safe_load(text)
        envoy, clusters = files["envoy.yaml"], files["clusters.yaml"]
        for place in [envoy["admin"], *envoy["static_resources"]["listeners"]]:
            place["address"]["socket_address"].update(address="127.0.0.1", port_value=0)
        for cluster in clusters["resources"]:
            for group in cluster["load_assignment"]["endpoints"]:
                for endpoint in group["lb_endpoints"]:
                    endpoint["endpoint"]["address"]["socket_address"].update(
                        address="127.0.0.1", port_value=server_port)
        for name, value in files.items():
            (folder / name).write_text(yaml.safe_dump(value))
        self.container = self.manifests.find("Deployment", "blockd-router")["spec"]["template"][
            "spec"]["containers"][0]
        arguments = [each.replace("/etc/envoy", str(folder)) for each in self.container["args"]]
        arguments[arguments.index("--drain-time-s") + 1] = "1"
        admin_file = folder / "admin"
        self.process = subprocess.Popen(
            [ENVOY, *arguments, "--admin-address-path", admin_file, "--log-level", "error"])
        try:
            until(lambda: admin_file.exists() and admin_file.read_text(), "Envoy", self.process)
            self.admin = admin_file.read_text()
            until(lambda: len(self.listeners()) == 2, "Envoy's listeners", self.process)
            until(lambda: get(self.listeners()["ready"], "/ready")[0] == 200, "a healthy server",
                  self.process)
        except AssertionError:
            self.stop()
            raise

    def listeners(self):
        """name -> host:port."""
        status, text = get(self.admin, "/listeners?format=json")
        if status != 200:
            return {}
        found = {}
        for each in json.loads(text).get("listener_statuses", []):
            address = each["local_address"]["socket_address"]
            found[each["name"]] = f"{address['address']}:{address['port_value']}"
        return found

    def stop(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def blockctl(address, *words):
    """(exit status, standard output) of blockctl."""
    ran = subprocess.run([BIN / "blockctl", f"--server={address}", "--timeout=20s", *words],
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                         timeout=120)
    return ran.returncode, ran.stdout


class RouterTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_envoy_takes_the_configuration_of_every_overlay(self):
        make_certificates(self.folder)
        for overlay in ("cpu", "tls"):
            with self.subTest(overlay):
                config, = rendered(overlay).of_kind("ConfigMap")
                for name, text in config["data"].items():
                    text = text.replace("/etc/blockd/tls", str(self.folder))
                    (self.folder / name).write_text(text.replace("/etc/envoy", str(self.folder)))
                output(ENVOY, "--mode", "validate", "--config-path", self.folder / "envoy.yaml")

    def test_ready_tells_whether_a_server_is_healthy(self):
        server = Server()
        with Router("cpu", self.folder, server.port) as router:
            self.assertEqual(server.stop(), 0)
            ready = router.listeners()["ready"]
            until(lambda: get(ready, "/ready")[0] == 503, "the router is not ready", router.process)

    def test_the_router_drains_before_it_ends(self):
        with Server() as server, Router("cpu", self.folder, server.port) as router:
            command = router.container["lifecycle"]["preStop"]["exec"]["command"]
            self.assertEqual(command[:2], ["bash", "-c"])
            port = router.admin.rpartition(":")[2]
            words = command[2].replace("/127.0.0.1/9901", f"/127.0.0.1/{port}")
            answer = output("bash", "-c", words.replace("sleep 25", "true"))
            self.assertIn("HTTP/1.1 200 OK", answer)
            host, _, grpc = router.listeners()["blockd"].rpartition(":")

            def refused():
                with socket.socket() as connection:
                    return connection.connect_ex((host, int(grpc))) != 0
            until(refused, "the router takes no new connections")
            self.assertIsNone(router.process.poll(), "it must live until its calls are over")

    def test_clients_are_who_their_certificates_say(self):
        make_certificates(self.folder)
        container = rendered("tls").find("StatefulSet", "blockd")["spec"]["template"]["spec"][
            "containers"][0]
        flags = [each.replace("/etc/blockd/tls", str(self.folder)) for each in container["args"]
                 if each.startswith(("--tls_", "--trust_"))]
        (self.folder / "a.mtx").write_text(
            "%%MatrixMarket matrix coordinate real symmetric\n2 2 3\n1 1 2\n2 2 2\n2 1 -1\n")
        with Server(*flags) as server, Router("tls", self.folder, server.port) as router:
            address = router.listeners()["blockd"]
            trust = [f"--tls_ca_file={self.folder}/ca.crt", "--tls_server_name=blockd"]

            def as_client(name):
                return [*trust, f"--tls_cert_file={self.folder}/{name}.crt",
                        f"--tls_key_file={self.folder}/{name}.key"]

            def held_by(*words):
                status, text = blockctl(address, *words, "--json", "list")
                self.assertEqual(status, 0, text)
                return len(json.loads(text)["factorizations"])

            status, text = blockctl(address, *trust, "--timeout=2s", "info")
            self.assertEqual(status, 2, text)
            status, handle = blockctl(address, *as_client("alice"), "factor",
                                      f"--matrix={self.folder}/a.mtx")
            self.assertEqual(status, 0, handle)
            self.assertEqual(held_by(*as_client("alice")), 1)
            self.assertEqual(held_by(*as_client("bob")), 0)
            # A name of another kind is somebody else's; a certificate without one name is nobody's.
            self.assertEqual(held_by(*as_client("uri")), 0)
            for name in ("email", "both", "none"):
                status, text = blockctl(address, *as_client(name), "--json", "list")
                self.assertNotEqual(status, 0, text)
                self.assertIn("blockd-caller", text)
            # What a client says of itself does not count, not even in the very words of the router.
            for said in ("", "alice", "dns:alice.example"):
                self.assertEqual(held_by(*as_client("bob"), f"--caller={said}"), 0)


if __name__ == "__main__":
    unittest.main()
