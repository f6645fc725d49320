"""The programs that the tests ask: where they are comes from the environment."""
import os
import pathlib
import re
import subprocess
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"

# From run.sh: the folder of blockd and blockctl, and every kubectl that must render the manifests.
BIN = pathlib.Path(os.environ["BLOCKD_BIN"])
KUBECTLS = os.environ["KUBECTLS"].split(":")
PROMTOOL = os.environ["PROMTOOL"]
ENVOY = os.environ["ENVOY"]


def output(*command, **options):
    """Standard output and error together; fails with them where the program fails."""
    ran = subprocess.run([str(each) for each in command], stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True, check=False, timeout=120, **options)
    if ran.returncode != 0:
        raise AssertionError(f"{command} ended with {ran.returncode}:\n{ran.stdout}")
    return ran.stdout


def until(condition, what, process=None, limit_seconds=60):
    """Waits for a condition, and fails with the name of what did not come."""
    end = time.monotonic() + limit_seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        if process and process.poll() is not None:
            raise AssertionError(f"{what}: the program ended with {process.returncode}")
        time.sleep(0.02)
    raise AssertionError(f"{what}: not within {limit_seconds} s")


class Server:
    """A blockd of its own on free ports, for a `with`."""

    def __init__(self, *flags):
        self.folder = tempfile.TemporaryDirectory()
        ports = pathlib.Path(self.folder.name) / "ports"
        self.process = subprocess.Popen(
            [BIN / "blockd", "--port=0", "--metrics_port=0", f"--port_file={ports}",
             "--device_memory=64MiB", "--cpu_threads=1", "--log_level=error", *flags])
        try:
            text = until(lambda: ports.exists() and ports.read_text(), "blockd", self.process)
        except AssertionError:
            self.stop()
            raise
        found = dict(line.split("=") for line in text.split())
        self.port, self.metrics_port = int(found["grpc"]), int(found["metrics"])

    def stop(self):
        self.process.terminate()
        try:
            status = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self.folder.cleanup()
        return status

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def exported_series():
    """(name, labels) of every series on the server's metrics page, with those of a certificate."""
    with tempfile.TemporaryDirectory() as folder:
        key, certificate = f"{folder}/tls.key", f"{folder}/tls.crt"
        output("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost",
               "-days", "90", "-keyout", key, "-out", certificate)
        with Server(f"--tls_key_file={key}", f"--tls_cert_file={certificate}") as server:
            page = urllib.request.urlopen(
                f"http://127.0.0.1:{server.metrics_port}/metrics", timeout=30).read().decode()
    found = []
    for line in page.splitlines():
        match = re.match(r"(blockd_\w+)(?:\{(.*)\})? ", line)
        if match:
            found.append((match[1], dict(re.findall(r'(\w+)="([^"]*)"', match[2] or ""))))
    return found
