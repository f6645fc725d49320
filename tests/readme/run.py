#!/usr/bin/env python3
"""Runs the code of the READMEs in order, as a newcomer pastes it.

    tests/readme/run.py BUILD FOLDER [README]...

BUILD is a tree of the preset release with blockd and blockctl built. FOLDER gets copies of the sources, logs and programs.

Without a README it runs all of them. Each has a copy of the sources with BUILD as its build/deploy, a shell, a virtual
environment if it has Python, and the home that README.md has left. The language of a fence says how its block is run:

    sh        It goes into the one shell of the README. Each command must succeed, or end with status N where its line
              says `exit status N`.
    python    It goes into the one interpreter of the README, which starts where the shell then is.
    cpp       All of a README are one program, which runs where the last one stands. Without a `main` they are the body
              of one, below their includes. The README's cmake blocks build it with the installed package.
    none, mermaid    Data and output are not run.

`<!-- not run: REASON -->` directly above the fence leaves a block out; Python is compiled still. A block of any other
language fails without it. Others may use the default ports on this machine, so everything runs in a network of its own
where the system allows that.
"""

from __future__ import annotations

import ast
import fcntl
import io
import os
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import venv
from pathlib import Path
from typing import IO, NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SHOWN = ("", "mermaid")
LIMIT_SECONDS = 300  # for a block that never ends


class Block(NamedTuple):
    readme: str
    line: int  # of its first line
    language: str
    text: str
    reason: str  # why it is not run, or empty

    def in_place(self) -> str:
        """Its text at its lines of the README, so that errors name them."""
        return "\n" * (self.line - 1) + self.text

    def lines(self) -> "list[tuple[int, str]]":
        return list(enumerate(self.text.splitlines(), self.line))


class Failure(NamedTuple):
    line: int
    what: str


def blocks_of(readme: str) -> "list[Block]":
    blocks: "list[Block]" = []
    language, first, reason = None, 0, ""
    lines = (ROOT / readme).read_text().splitlines()
    for number, line in enumerate(lines, 1):
        fence = re.match(r"\s*```(.*)", line)
        if not fence:
            continue
        if language is None:
            mark = re.fullmatch(r"<!-- not run: (.+) -->", lines[number - 2]) if number > 1 else None
            language, first, reason = fence.group(1).strip(), number + 1, mark.group(1) if mark else ""
        else:
            text = "".join(line + "\n" for line in lines[first - 1 : number - 1])
            blocks.append(Block(readme, first, language, text, reason))
            language = None
    return blocks


class Session:
    """A process into which blocks are pasted: paste.sh or paste.py."""

    def __init__(self, command: "list[str]", folder: Path, cwd: str, environment: "dict[str, str]", log: IO[bytes]):
        read, write = os.pipe()
        self.folder, self.answers = folder, os.fdopen(read, "rb", buffering=0)  # as select sees it
        self.process = subprocess.Popen([command[0], command[1], str(write), *command[2:]], cwd=cwd, env=environment,
                                        stdin=subprocess.PIPE, stdout=log, stderr=log, text=True, pass_fds=(write,))
        os.close(write)

    def answer(self) -> str:
        """The next line; what ends it all as one, too."""
        for _ in range(LIMIT_SECONDS):
            if select.select([self.answers], [], [], 1)[0]:
                return self.answers.readline().decode().strip()
            if self.process.poll() is not None:
                return f"0 the session ended with status {self.process.returncode}"
        return f"0 not done after {LIMIT_SECONDS} s"

    def paste(self, text: str) -> "list[Failure]":
        file, failures = self.folder / "block", []
        file.write_text(text)
        assert self.process.stdin
        try:
            print(file, file=self.process.stdin, flush=True)
        except BrokenPipeError:
            return [Failure(0, "the session has ended")]
        while (answer := self.answer()) != "end":
            line, _, what = answer.partition(" ")
            failures.append(Failure(int(line or 0), what))
            if line in ("", "0"):
                break
        return failures

    def end(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()


class Newcomer:
    """Reads one README, with a copy of the tree, a shell and, from the first block of Python on, an interpreter."""

    def __init__(self, readme: str, blocks: "list[Block]", build: Path, home: Path, folder: Path):
        self.readme, self.build, self.home, self.folder = readme, build, home, folder
        self.tree, environment = folder / "blockd", folder / "venv"
        shutil.copytree(ROOT, self.tree, symlinks=True, ignore=lambda path, names: {
            name for name in names if name in (".git", ".cache", "__pycache__")
            or path == str(ROOT) and name.startswith("build")})
        (self.tree / "build").mkdir()
        (self.tree / "build/deploy").symlink_to(build)
        if any(block.language == "python" for block in blocks):
            venv.create(environment, system_site_packages=True, with_pip=True)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("BLOCKD_")},
            "HOME": str(home), "PATH": f"{environment}/bin:{os.environ['PATH']}", "VIRTUAL_ENV": str(environment),
            # What pip would fetch is the distribution's here.
            "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "CMAKE_GENERATOR": "Ninja", "CMAKE_PREFIX_PATH": str(home / ".local"),
        }
        self.log = (folder / "log").open("ab")
        self.shell = Session(["bash", str(HERE / "paste.sh")], folder, str(self.tree), self.environment, self.log)
        self.interpreter: "Session | None" = None

    def paste_sh(self, block: Block) -> "list[Failure]":
        # Without the last line, the status of the block's last command would be that of the block, told twice.
        failures = self.shell.paste(block.in_place() + ":\n")
        said = [Failure(number, f"exit status {status}") for number, line in block.lines()
                for status in re.findall(r"#.*exit status ([1-9]\d*)", line)]
        return ([failure for failure in failures if failure not in said] +
                [Failure(one.line, f"no {one.what}") for one in said if one not in failures])

    def paste_python(self, block: Block) -> "list[Failure]":
        if not self.interpreter:
            self.shell.paste(f"env -0 >{self.folder}/environment; pwd >{self.folder}/cwd\n")
            entries = (self.folder / "environment").read_text().split("\0")[:-1]
            self.interpreter = Session(["python", str(HERE / "paste.py"), self.readme], self.folder,
                                       (self.folder / "cwd").read_text().strip(),
                                       dict(entry.split("=", 1) for entry in entries), self.log)
        return self.interpreter.paste(block.in_place())

    def run_cpp(self, cpp: "list[Block]", cmake: "list[Block]") -> "list[Failure]":
        source = self.folder / "program"
        source.mkdir()
        top: "list[str]" = []
        body: "list[str]" = []
        complete = any("int main(" in block.text for block in cpp)
        for number, line in (pair for block in cpp for pair in block.lines()):
            above = complete or line.startswith(("#include ", "using namespace "))
            (top if above else body).append(f'#line {number} "{self.readme}"\n{line}\n')
        if not complete:
            body = ["int main(int argc, char** argv) {\n", *body, "}\n"]
        (source / "main.cc").write_text("".join(top + body))
        (source / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.25)\nproject(controller LANGUAGES CXX)\nset(CMAKE_CXX_STANDARD 20)\n"
            "add_executable(controller main.cc)\n" + "".join(block.text for block in cmake))
        steps = [f"cmake -S {source} -B {source}/build", f"cmake --build {source}/build", f"{source}/build/controller"]
        if not (self.home / ".local").exists():  # where README.md, which installs it, was left out
            steps.insert(0, f"cmake --install {self.build} --prefix {self.home}/.local")
        for step in steps:
            done = subprocess.run(step.split(), cwd=self.tree, env=self.environment, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, timeout=LIMIT_SECONDS)
            self.log.write(done.stdout.encode())
            self.log.flush()
            if done.returncode:
                error = re.search(rf"{re.escape(self.readme)}:(\d+)(?::\d+)?: (.*error.*)", done.stdout)
                what = f"exit status {done.returncode} of {Path(step.split()[0]).name}"
                return [Failure(int(error.group(1)), error.group(2)) if error else Failure(cpp[-1].line, what)]
        return []

    def run(self, block: Block, blocks: "list[Block]") -> "list[Failure]":
        if block.language == "sh":
            return self.paste_sh(block)
        if block.language == "python":
            return self.paste_python(block)
        if block.language == "cpp":
            cpp = [one for one in blocks if one.language == "cpp" and not one.reason]
            return self.run_cpp(cpp, [one for one in blocks if one.language == "cmake"]) if block == cpp[-1] else []
        return [Failure(block.line, f"no way to run '{block.language}', and no `<!-- not run: REASON -->` above it")]

    def leave(self) -> None:
        if self.interpreter:
            self.interpreter.end()
        self.shell.end()
        self.log.close()


def syntax_errors(block: Block) -> "list[Failure]":
    """What is wrong with a block that is not run."""
    if block.language == "python":
        try:
            compile(block.in_place(), block.readme, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        except SyntaxError as error:
            return [Failure(error.lineno or block.line, str(error))]
    return []


def read(readme: str, build: Path, home: Path, folder: Path) -> "tuple[int, int, int]":
    """How many of its blocks ran, were left out with a reason, and failed."""
    blocks = [block for block in blocks_of(readme) if block.language not in SHOWN]
    newcomer = None
    ran = left_out = failed = 0
    for block in blocks:
        if block.reason:
            print(f"{readme}:{block.line}: not run: {block.reason}")
            left_out += 1
            failures = syntax_errors(block)
        elif block.language != "cmake":  # which is built with the C++
            newcomer = newcomer or Newcomer(readme, blocks, build, home, folder)
            before = newcomer.log.seek(0, os.SEEK_END)
            failures = newcomer.run(block, blocks)
            ran += 1
            if failures:
                said = (folder / "log").read_bytes()[before:].decode(errors="replace").splitlines()
                print("\n".join(f"    {line}" for line in said[-40:]))
        else:
            continue
        failed += bool(failures)
        for failure in failures:
            print(f"{readme}:{failure.line or block.line}: FAILED: {failure.what}")
    if newcomer:
        newcomer.leave()
    return ran, left_out, failed


def main() -> int:
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(line_buffering=True)
    build, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    if "--alone" not in sys.argv:
        # Processes of its own, too: none outlives this one.
        alone = ["unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
        if subprocess.run([*alone, "true"], stderr=subprocess.DEVNULL).returncode == 0:
            os.execvp(alone[0], [*alone, sys.executable, *sys.argv, "--alone"])
        print("readme: no network of its own here: ports 7117 and 7118 must be free")
    else:
        sys.argv.remove("--alone")
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # which the first process would not see
        with socket.socket() as any_socket:  # SIOCSIFFLAGS: the loopback interface is up and runs
            fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH22x", b"lo", 0x41))
    documents = sorted(str(path.relative_to(ROOT)) for path in {*ROOT.glob("*.md"), *ROOT.rglob("README.md")})
    readmes = sys.argv[3:] or [name for name in documents if not name.startswith(("build", "."))]
    shutil.rmtree(folder, ignore_errors=True)
    home = folder / "home"
    home.mkdir(parents=True)
    counts = [read(readme, build, home, folder / readme.replace("/", "_")) for readme in readmes]
    ran, left_out, failed = (sum(column) for column in zip(*counts))
    print(f"readme: {ran} blocks of code ran, {failed} failed, {left_out} are left out for the reasons above")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
