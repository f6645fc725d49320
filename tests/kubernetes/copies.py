#!/usr/bin/env python3
"""Files below deploy/kubernetes that are made of others, since Kustomize cannot make them.

  copies.py            writes them
  copies.py --check    fails where one is out of date

monitoring/rules.yaml is deploy/prometheus/blockd.rules.yml as a PrometheusRule. overlays/tls has
the router's configuration of deploy/router with TLS on both sides.
"""
import pathlib
import sys

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
TLS = "/etc/blockd/tls"


def header(source):
    return f"# Made of {source} by tests/kubernetes/copies.py: change that, run the script.\n"


def prometheus_rule():
    source = "deploy/prometheus/blockd.rules.yml"
    text = header(source) + """\
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: blockd
  labels: {app.kubernetes.io/name: blockd}
spec:
"""
    for line in (ROOT / source).read_text().splitlines():
        text += f"  {line}\n" if line else "\n"
    return text


# As a client, Envoy speaks 1.2 unless it is told.
TLS_1_3 = {"tls_minimum_protocol_version": "TLSv1_3", "tls_maximum_protocol_version": "TLSv1_3"}


def tls_socket(kind, context):
    """Envoy's transport socket of a listener (Downstream) or of a cluster (Upstream)."""
    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3."
                     f"{kind}TlsContext",
            **context,
        },
    }


class Plain(yaml.SafeDumper):
    """Writes what stands twice twice, without anchors."""

    def ignore_aliases(self, data):
        return True


def dump(source, value):
    return header(source) + yaml.dump(value, Dumper=Plain, sort_keys=False, width=100)


def listener_of(envoy, name):
    return next(each for each in envoy["static_resources"]["listeners"] if each["name"] == name)


# As a server reads a certificate itself (--certificate_identity=uri,dns): kinds do not mix, and no name
# is joined with another. What has not one name of the first kind that it has is nobody, whom the server
# refuses.
NAME_THE_CALLER = """\
function envoy_on_request(handle)
  local tls = handle:streamInfo():downstreamSslConnection()
  local uris, names = tls:uriSanPeerCertificate(), tls:dnsSansPeerCertificate()
  local caller = ""
  if #uris == 1 then
    caller = "uri:" .. uris[1]
  elseif #uris == 0 and #names == 1 then
    caller = "dns:" .. names[1]
  end
  if not caller:match("^[ -~]*$") then caller = "" end
  handle:headers():replace("blockd-caller", caller)
end
"""


def tls_envoy():
    """Clients must show a certificate, and `blockd-caller` is what it says and nothing else."""
    source = "deploy/router/envoy.yaml"
    envoy = yaml.safe_load((ROOT / source).read_text())
    chain = listener_of(envoy, "blockd")["filter_chains"][0]
    chain["transport_socket"] = tls_socket("Downstream", {
        "require_client_certificate": True,
        "common_tls_context": {
            "alpn_protocols": ["h2"],
            "tls_params": TLS_1_3,
            "tls_certificates": [{
                "certificate_chain": {"filename": f"{TLS}/tls.crt"},
                "private_key": {"filename": f"{TLS}/tls.key"},
            }],
            "validation_context": {"trusted_ca": {"filename": f"{TLS}/ca.crt"}},
        },
    })
    # First of all filters: a value from outside must not stay, whatever the certificate has.
    chain["filters"][0]["typed_config"]["http_filters"].insert(0, {
        "name": "envoy.filters.http.lua",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua",
            "default_source_code": {"inline_string": NAME_THE_CALLER},
        },
    })
    return dump(source, envoy)


def tls_clusters():
    """The servers show a certificate for the name `blockd`; the router checks it."""
    source = "deploy/router/clusters.yaml"
    clusters = yaml.safe_load((ROOT / source).read_text())
    for cluster in clusters["resources"]:
        cluster["transport_socket"] = tls_socket("Upstream", {
            "sni": "blockd",
            "common_tls_context": {
                "alpn_protocols": ["h2"],
                "tls_params": TLS_1_3,
                "validation_context": {
                    "trusted_ca": {"filename": f"{TLS}/ca.crt"},
                    "match_typed_subject_alt_names": [
                        {"san_type": "DNS", "matcher": {"exact": "blockd"}},
                    ],
                },
            },
        })
    return dump(source, clusters)


COPIES = {
    "kubernetes/monitoring/rules.yaml": prometheus_rule,
    "kubernetes/overlays/tls/envoy.yaml": tls_envoy,
    "kubernetes/overlays/tls/clusters.yaml": tls_clusters,
}


def out_of_date():
    """The names of the copies that are not what they are made of."""
    return [name for name, make in COPIES.items()
            if not (DEPLOY / name).exists() or (DEPLOY / name).read_text() != make()]


def main():
    if sys.argv[1:] == ["--check"]:
        stale = out_of_date()
        for name in stale:
            print(f"deploy/{name} is out of date: run tests/kubernetes/copies.py", file=sys.stderr)
        return 1 if stale else 0
    for name, make in COPIES.items():
        (DEPLOY / name).write_text(make())
    return 0


if __name__ == "__main__":
    sys.exit(main())
