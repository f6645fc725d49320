#!/usr/bin/env python3
"""Writes what an image is made of, as SPDX 2.3 in JSON, and checks it.

debsbom lists the image's Debian packages; this adds blockd and what blockd has linked into itself. Runs
with the Python of an environment that has debsbom and spdx-tools.
"""

import argparse
import importlib.metadata
import json
import pathlib
import subprocess
import sys

from spdx_tools.spdx.parser.parse_anything import parse_file
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document


def package(name, version, license_id, supplier):
    return {
        "SPDXID": f"SPDXRef-{name}",
        "name": name,
        "versionInfo": version,
        "supplier": supplier,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": license_id,
        "licenseDeclared": license_id,
        "copyrightText": "NOASSERTION",
    }


def relate(document, subject, kind, target):
    document["relationships"].append(
        {"spdxElementId": subject, "relationshipType": kind, "relatedSpdxElement": target}
    )


def add_linked(document, folder, name):
    """Adds a distribution of PyPI, unpacked in the folder, that is linked into blockd."""
    found = next(importlib.metadata.distributions(name=name, path=[folder]))
    license_text = next(file for file in found.files if file.name == "License.txt")
    license_id = f"LicenseRef-{name}"
    document["packages"].append(package(name, found.version, license_id, "Organization: NVIDIA"))
    document.setdefault("hasExtractedLicensingInfos", []).append(
        {
            "licenseId": license_id,
            "name": f"License of {name}",
            "extractedText": found.locate_file(license_text).read_text(encoding="utf-8"),
        }
    )
    relate(document, f"SPDXRef-{name}", "STATIC_LINK", "SPDXRef-blockd")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", required=True, help="the image's root, without blockd")
    parser.add_argument("--version", required=True, help="of blockd")
    parser.add_argument("--cuda", help="folder of the distributions of CUDA that blockd was linked with")
    parser.add_argument("--out", required=True, type=pathlib.Path)
    args = parser.parse_args()

    debsbom = pathlib.Path(sys.executable).parent / "debsbom"
    command = [debsbom, "generate", "--sbom-type=spdx", "--with-licenses", f"--root={args.root}"]
    command += ["--distro-name=image", f"--distro-version={args.version}", "--out=-"]
    document = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    document["name"] = f"blockd {args.version}"
    document["packages"].append(package("blockd", args.version, "Apache-2.0", "NOASSERTION"))
    relate(document, "SPDXRef-image", "CONTAINS", "SPDXRef-blockd")
    if args.cuda:
        add_linked(document, args.cuda, "nvidia-cuda-runtime")
    args.out.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")

    faults = validate_full_spdx_document(parse_file(str(args.out)))
    for fault in faults:
        print(f"{args.out}: {fault.validation_message}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
