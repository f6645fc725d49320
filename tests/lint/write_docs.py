#!/usr/bin/env python3
"""Writes what the documentation shows of the tree: tables of measurements, pictures of includes.

  tests/lint/write_docs.py                      writes them between their markers
  tests/lint/write_docs.py --check              fails where what stands there differs
  tests/lint/write_docs.py --show TABLE FOLDER  prints a table of the results in FOLDER

A table's markers are `<!-- table: NAME begin -->` and `<!-- table: NAME end -->`, in one Markdown file
only. It shows tests/bench/results/NAME.json, which a benchmark wrote (--json), or several such files: TABLES
says which. A picture's markers are `<!-- picture: FOLDER begin -->` and `... end -->`: the folders below
FOLDER (`.`: the modules), an arrow wherever a source includes another folder's header.
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODULES = ("proto", "engine", "server", "client")
MARKER = re.compile(
    r"<!-- (table|picture): (\S+) begin -->\n(.*?)<!-- \1: \2 end -->", re.DOTALL)


class Results:
    """The files of one folder of results, each read once."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def read(self, name):
        """A result, checked: it says when, on what, how and of which commit it was measured."""
        path = self.folder / f"{name}.json"
        result = json.loads(path.read_text())
        for key in ("date", "hardware", "command", "commit", "rows"):
            if not result.get(key):
                sys.exit(f"{path}: no {key}")
        return result

    def milliseconds(self, name, field="median_s"):
        """(N, n, K, work) -> milliseconds, of a file of engine_bench."""
        return {(row["N"], row["n"], row["K"], row["work"]): 1e3 * row[field]
                for row in self.read(name)["rows"] if row.get(field)}


def caption(result):
    text = (f"{result['date']}, {result['hardware']}. `{result['command']}`, "
            f"commit {result['commit']}. {result.get('note', '')}")
    return text.rstrip()


def markdown(columns, rows, captions):
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n\n" + \
        "\n".join(captions) + "\n"


def plain(name):
    """The table of a file whose rows are the table's."""
    def make(results):
        result = results.read(name)
        columns = list(result["rows"][0])
        rows = [[row.get(column, "") for column in columns] for row in result["rows"]]
        return markdown(columns, rows, [caption(result)])
    return make


def number(value, digits=3):
    """Three significant digits; "" for nothing."""
    if value is None:
        return ""
    decimals = max(0, digits - len(str(int(value)))) if value >= 1 else digits
    return f"{value:.{decimals}f}"


def ratio(over, under):
    return "" if over is None or under is None else f"{over / under:.2f}"


def shapes(times):
    """Shapes in the order of the file, largest blocks first, with how the table names them."""
    for shape in dict.fromkeys(key[:3] for key in times):
        blocks, size, systems = shape
        yield shape, f"{blocks}, {size}" + (f", {systems} systems" if systems > 1 else "")


def gpu(results):
    """FP64 beside other solvers."""
    ours, peers = results.milliseconds("gpu_fp64"), results.milliseconds("gpu_peers")
    columns = ["N, n", "factor", "cuDSS", "socu", "solve d=1", "cuDSS", "socu", "solve d=16"]
    rows = []
    for shape, name in shapes(ours):
        cells = [name]
        for work in ("factor", "solve d=1"):
            cells += [number(ours.get((*shape, work)))]
            cells += [number(peers.get((*shape, f"{peer} {work}"))) for peer in ("cuDSS", "socu")]
        rows.append(cells + [number(ours.get((*shape, "solve d=16")))])
    return markdown(columns, rows, ["Milliseconds, FP64.",
                                    "blockd: " + caption(results.read("gpu_fp64")),
                                    "Others: " + caption(results.read("gpu_peers"))])


def gpu_float32(results):
    """FP64 over what the device allows; float32, and FP64 over it."""
    double, single = results.milliseconds("gpu_fp64"), results.milliseconds("gpu_fp32")
    # Of less than a microsecond there is nothing to say.
    limits = {key: limit for key, limit in results.milliseconds("gpu_fp64", "limit_s").items()
              if limit > 1e-3}
    works = ("factor", "solve d=1", "solve d=16")
    columns = ["N, n", "factor, FP64 / limit", "solve d=1, FP64 / limit"]
    for work in works:
        columns += [f"{work}, float32", "FP64 / float32"]
    rows = []
    for shape, name in shapes(double):
        cells = [name] + [ratio(double.get((*shape, work)), limits.get((*shape, work)))
                          for work in works[:2]]
        for work in works:
            key = (*shape, work)
            cells += [number(single.get(key)), ratio(double.get(key), single.get(key))]
        rows.append(cells)
    return markdown(columns, rows, [
        "Milliseconds. The limit is the time of 7/3 n^3 N flops at the rate of a large dgemm, or of "
        "the bytes at the rate of a copy, whichever is longer.",
        "float32: " + caption(results.read("gpu_fp32"))])


def gpu_inverse(results):
    """All Z(i,i) beside the factorization."""
    times = results.milliseconds("gpu_inverse")
    inverses = {key[:3]: time for key, time in times.items() if key[3].startswith("selected")}
    rows = [[name, number(times[(*shape, "factor")]), number(inverses[shape]),
             ratio(inverses[shape], times[(*shape, "factor")])] for shape, name in shapes(times)]
    return markdown(["N, n", "factor", "all Z(i,i)", "ratio"], rows,
                    ["Milliseconds, FP64. " + caption(results.read("gpu_inverse"))])


def service_router(results):
    """Calls through a router beside direct ones."""
    result = results.read("service_router")
    rows = [[row["work"].replace(" through Envoy against direct", ""), row["blockd"],
             row["reference"], row["ratio"]] for row in result["rows"]]
    return markdown(["call", "through Envoy", "direct", "ratio"], rows, [caption(result)])


def gpu_service(results):
    """The rows with default settings. The file has others, whose names end with the setting."""
    result = results.read("gpu_service")
    settings = ("queues", "poll(2)", "tcmalloc")
    rows = [row for row in result["rows"] if not any(name in row["work"] for name in settings)]
    columns = list(rows[0])
    return markdown(columns, [[row.get(column, "") for column in columns] for row in rows],
                    [caption(result)])


# The tables that show more than one file, or not all of one.
TABLES = {"gpu": gpu, "gpu_float32": gpu_float32, "gpu_inverse": gpu_inverse,
          "gpu_service": gpu_service, "service_router": service_router}


def table(name, results):
    return TABLES.get(name, plain(name))(results)


INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def folder_of(path, base):
    """Which folder of the picture a source belongs to: one below `base`, or of the tree a module's."""
    parts = path.relative_to(ROOT / base).parent.parts
    depth = 2 if base == "." else 1
    return "/".join(parts[:depth]) or base


def includes(base):
    """The picture's folders and its arrows: pairs of them."""
    def ours(name):
        if name.startswith(("blockd/v1/", "proto/blockd/v1/")):
            return ROOT / "proto/x"  # a file of proto/blockd/v1, or made from one
        for folder in (".", "engine/include", "client/include"):
            if (ROOT / folder / name).is_file():
                return ROOT / folder / name
        return None

    nodes, arrows = set(), set()
    tops = MODULES if base == "." else (base,)
    sources = [path for top in tops if top != "proto" for path in sorted((ROOT / top).rglob("*"))
               if path.suffix in (".h", ".cc", ".cu")]
    for source in sources:
        here = folder_of(source, base)
        nodes.add(here)
        for name in INCLUDE.findall(source.read_text()):
            header = ours(name)
            if header is None or not header.is_relative_to(ROOT / base):
                continue
            there = folder_of(header, base)
            if there != here:
                nodes.add(there)
                arrows.add((here, there))
    return sorted(nodes), sorted(arrows)


def picture(base):
    nodes, arrows = includes(base)
    lines = ["```mermaid", "graph TD"]
    lines += [f'  {node.replace("/", "_")}["{node}"]' for node in nodes]
    lines += [f"  {here} --> {there}".replace("/", "_") for here, there in arrows]
    return "\n".join(lines + ["```"]) + "\n"


def rewrite(path, results, seen):
    """The text of a Markdown file with everything between markers made anew."""
    def make(match):
        kind, name, _ = match.groups()
        if (kind, name) in seen:
            sys.exit(f"{path}: {kind} {name} stands in {seen[kind, name]} already; link to it")
        seen[kind, name] = path
        text = table(name, results) if kind == "table" else picture(name)
        return f"<!-- {kind}: {name} begin -->\n{text}<!-- {kind}: {name} end -->"
    return MARKER.sub(make, path.read_text())


def main(arguments):
    if arguments[:1] == ["--show"] and len(arguments) == 3:
        print(table(arguments[1], Results(arguments[2])), end="")
        return
    if arguments not in ([], ["--check"]):
        sys.exit(__doc__)
    texts = [*ROOT.glob("*.md"), *(path for top in ("deploy", *MODULES, "tests")
                                   for path in (ROOT / top).rglob("*.md"))]
    results, seen, stale = Results(ROOT / "tests/bench/results"), {}, []
    for path in texts:
        text = rewrite(path, results, seen)
        if text != path.read_text():
            stale.append(str(path.relative_to(ROOT)))
            if not arguments:
                path.write_text(text)
    if arguments and stale:
        sys.exit(f"{', '.join(stale)}: not as its files say, run tests/lint/write_docs.py")


main(sys.argv[1:])
