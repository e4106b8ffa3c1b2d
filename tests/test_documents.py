"""Every command and every Python block of the documents runs, in an empty folder, with what a fresh clone has.

Commands are those in blocks of shells and consoles, in indented lines and in backquotes, as far as they begin with
``topoplan``, name what to do, and have no placeholder.  They run as they stand, but with few proposals; those of the
README run with all of them where slow tests do.  `SMALLER` and `LEFT_OUT` say what is different here, and why.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from topoplan.cli import main
from topoplan.plugin.components import Registered
from topoplan.testing import check_component
from topoplan_testing import _common

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    path
    for pattern in (
        "README.md",
        "ARCHITECTURE.md",
        "docs/*.md",
        "docs/*/*.md",
        "libs/*/README.md",
        "plugins/*/*/README.md",
    )
    for path in ROOT.glob(pattern)
    if path.name != "original_systems.md"  # experiments/original_systems.py runs its commands
)
#: Words that follow; the last value of an option counts.
QUICK = {
    "optimize": ["--budget", "2"],
    "compare": ["--budget", "0", "--seeds", "1"],
    "sweep": ["--batch-sizes", "64,128", "--jobs", "1"],
    "flexnet": ["--search-budget", "2"],
    "sensitivity": ["--seeds", "1"],
}
#: Command -> words of it that are replaced, because it takes minutes or gigabytes as it is.
SMALLER = {
    "topoplan run examples/dlrm.toml --set run.budget=200": {"run.budget=200": "run.budget=10"},
    "topoplan run examples/dlrm.toml --set run.budget=200 --json": {"run.budget=200": "run.budget=10"},
    "topoplan sensitivity plan.json --budget 20": {"20": "2"},
    "topoplan optimize transformer --servers 65536 --batch-size 65536 --budget 0": {"65536": "64"},
}
#: What a command cannot have here.
LEFT_OUT = {
    "topoplan profile": "needs PyTorch, which is no dependency (tests/test_profile_command.py)",
    "topoplan optimize alexnet -o dialect=flexnet --batch-size 8 --servers 4 -e measured:file=operators.json": (
        "reads what the command before it measures (tests/test_profile_command.py)"
    ),
    "topoplan optimize torchgraph -o file=vgg16-pbs-2.txt": "likewise",
    "topoplan optimize torch -o module=": "needs PyTorch, which is no dependency (plugins/frontends/torch/tests)",
    "topoplan compare alexnet ncf --searchers mcmc,annealing": "that of examples/ (tests/test_example_searcher.py)",
    "topoplan validate llm": "takes half an hour with all its rows (plugins/commands/validate/tests)",
    "topoplan share": "takes minutes with its 128 servers (tests/test_share_command.py runs a smaller one)",
    "topoplan plugins show chord": "the plugin that the README writes (tests/test_readme.py)",
    "topoplan optimize dlrm -t chord": "the plugin that the README writes (tests/test_readme.py)",
    "topoplan optimize alexnet -t de-bruijn": "a plugin that is not installed (plugins/commands/new/tests)",
}
LEFT_OUT |= {
    "topoplan show best/plans/NAME.json.gz": "a placeholder (tests/test_best_known_plans.py)",
    "topoplan compare FILE.toml": "a placeholder",
    "topoplan compare --problems ... --best best": "likewise",
    "topoplan compare study.toml": "has no study, and waits for a cluster (tests/test_shared_runs.py)",
    "topoplan sweep torchgraph -o profile=bert-48 --devices '[8,16]' --executor": (
        "needs a cluster (tests/test_executors.py)"
    ),
    "topoplan optimize dlrm --chains 8 --budget 20000 --executor": "likewise",
    "topoplan optimize onnx -o file=model.onnx": "a file of the user's (plugins/frontends/onnx/tests)",
    "topoplan optimize onnx -o file=decoder.onnx": "likewise",
    "topoplan optimize huggingface -o config=config.json": "likewise",
    "topoplan simulate FILE.fbuf": "a placeholder",
    "topoplan problems --improve": "names an option alone (libs/studies/tests/test_problems.py)",
}
#: Files of a user's that a command reads, without which it cannot run (libs/trainer-plans/tests).
OF_USERS = re.compile(r"--plan-from (megatron|train)\.sh\b")
#: Commands whose plan does not fit, as their page says.
DO_NOT_FIT = ("--plan pp=16,ep=64,dp=128,zero=1,layers=4*15+1",)
#: Studies that have a plan for their own number of servers.
OWN_SERVERS = ("experiments/llama-70b-64-h100.toml",)
#: Components of documents that break a promise, as the document says.
UNFIT = ("unlimited",)
_ON_A_PANEL = ["optimize", "alexnet", "--batch-size", "64", "--servers", "8", "-t", "topoopt", "--budget", "0", "-x"]
_KEPT = ["optimize", "alexnet", "--batch-size", "64", "--servers", "4", "--budget", "2"]
#: Files that a command reads, and the command of ours that writes it first.
NEEDS = {
    "traces": [*_ON_A_PANEL, "chakra=traces"],
    "network.json": [*_ON_A_PANEL, "node-link=network.json"],
    "network.graphml": [*_ON_A_PANEL, "graphml=network.graphml"],
    "path_to_strategy": [
        "optimize",
        "alexnet",
        "-o",
        "image=229",
        "--batch-size",
        "256",
        "--servers",
        "1",
        "--gpus-per-server",
        "4",
        "--budget",
        "0",
        "-x",
        "strategy=path_to_strategy",
    ],
    "plan.json": [
        "optimize",
        "alexnet",
        "--batch-size",
        "64",
        "--servers",
        "4",
        "--budget",
        "2",
        "-x",
        "json=plan.json",
    ],
    "a.json": ["optimize", "ncf", "--batch-size", "64", "--servers", "2", "--budget", "0", "-x", "json=a.json"],
    "b.json": ["optimize", "ncf", "--batch-size", "64", "--servers", "4", "--budget", "0", "-x", "json=b.json"],
    **{name: [*_KEPT, "--run", "runs/alexnet"] for name in ("runs/alexnet", "runs/alexnet/best.json")},
    "dlrm.fbuf": [
        "optimize",
        "dlrm",
        "--batch-size",
        "64",
        "--servers",
        "4",
        "--budget",
        "0",
        "-x",
        "flatbuffer=dlrm.fbuf",
    ],
    "hidup.json": [
        "optimize",
        "vit-switch",
        "-o",
        "world-size=4",
        "-o",
        "layers=2",
        "--devices",
        "[4]",
        "-e",
        "hidup",
        "-s",
        "hidup",
        "-x",
        "json=hidup.json",
    ],
}


def commands(path):
    """Every command of a page, once, without what stands before ``topoplan`` and without remarks."""
    text = path.read_text(encoding="utf-8")
    blocks = [
        body for kind, body in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S) if kind in ("sh", "console")
    ]
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    lines = [part for body in blocks for line in body.splitlines() for part in line.split("&&")]
    lines += re.findall(r"^    (.*topoplan .*)$", prose, re.M)
    lines += re.findall(r"`([^`\n]*topoplan [^`\n]*)`", prose)
    matches = (re.match(r"\s*(?:uv run )?(?:\.venv/bin/)?(topoplan .*?)\s*(?:#.*)?$", line) for line in lines)
    return list(
        dict.fromkeys(match[1] for match in matches if match and not re.search(r"[…<>]| [A-Z]+(\s|$)", match[1]))
    )


#: Commands that take seconds with the smallest budget, too.
LONG = (
    r"experiments/|llama-3-70b|llama-3-8b\.json -o sequence-length=\d+ (?!-o layers)"
    r"|sweep torchgraph|compare alexnet ncf|sensitivity plan.json --budget"
    r"|layers -o file=examples/models/transformer.toml|bert-switch --devices '\[8\]' --device v100"
    r"|plugins doctor|sensitivity plan.json$"
)
#: Pages whose commands run on each save: what readers type first.  Those of others run at night.
FIRST = (ROOT / "README.md", ROOT / "docs" / "tutorial.md")
#: Blocks that take seconds, of pages of which another block runs on each save.
LONG_BLOCKS = (
    "docs/guides/research.md-0",
    *(f"docs/guides/python.md-{number}" for number in (1, 2, 3)),
    "docs/plugins/searcher.md-1",
)
CASES = [(path, command) for path in PAGES for command in commands(path)]
ONCE = list({command: (path, command) for path, command in reversed(CASES)}.values())[::-1]


def label(case):
    return f"{case[0].relative_to(ROOT)}: {case[1]}"


def reason(command):
    if OF_USERS.search(command):
        return "reads a script of the user's"
    return next((why for start, why in LEFT_OUT.items() if command.startswith(start)), None)


def is_whole(command):
    """Say whether the words of a command are one, and not just the name of a word."""
    words = command.split()[1:]
    return words == ["plugins"] or (len(words) > 1 and words != ["plugins", "show"])


def is_long(path, command):
    """Say whether a command runs at night alone."""
    return re.search(LONG, command) is not None or path not in FIRST


RUN = [
    pytest.param(case, id=label(case), marks=[pytest.mark.slow] if is_long(*case) else [])
    for case in ONCE
    if is_whole(case[1]) and reason(case[1]) is None
]


def run(words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    _, err = capsys.readouterr()
    return ended.value.code or 0, err


def test_the_documents_have_commands():
    readme = commands(ROOT / "README.md")
    assert len(readme) >= 10
    assert {command.split()[1] for command in readme} >= {"optimize", "sweep", "compare", "plugins", "sensitivity"}
    assert len(RUN) >= 20


@pytest.mark.parametrize("start", LEFT_OUT)
def test_what_is_left_out_is_still_there(start):
    assert any(command.startswith(start) for _, command in CASES)


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """Return a function that copies what a command of ours writes into the current folder; it runs once."""
    folders = {}

    def written(words, capsys, monkeypatch):
        if tuple(words) not in folders:
            folder = folders[tuple(words)] = tmp_path_factory.mktemp("written")
            with monkeypatch.context() as there:
                there.chdir(folder)
                assert run(words, capsys)[0] == 0
        shutil.copytree(folders[tuple(words)], ".", dirs_exist_ok=True)

    return written


def prepare(words, written, capsys, monkeypatch, folder):
    """Go to an empty folder with what a fresh clone has, and with the files that other commands write for this one."""
    monkeypatch.chdir(folder)
    (folder / "docs").mkdir()
    for name in ("examples", "experiments"):
        (folder / name).symlink_to(ROOT / name)
    for name, before in NEEDS.items():
        read = [
            word for flag, word in zip(["", *words], words, strict=False) if flag not in ("-x", "--run", "--taskgraph")
        ]
        if any(name == word.split("=")[-1] for word in read):
            written(before, capsys, monkeypatch)


@pytest.mark.parametrize("case", RUN)
@pytest.mark.by_day(10)
def test_a_command_runs(case, written, capsys, monkeypatch, tmp_path):
    words = [SMALLER.get(case[1], {}).get(word, word) for word in shlex.split(case[1])[1:]]
    prepare(words, written, capsys, monkeypatch, tmp_path)
    is_small = "experiments/" in case[1] and not case[1].endswith(OWN_SERVERS)
    status, err = run([*words, *QUICK.get(words[0], []), *(["--servers", "4"] if is_small else [])], capsys)  # of 128
    assert status == (2 if case[1].endswith(DO_NOT_FIT) else 0), err


@pytest.mark.slow
@pytest.mark.parametrize("command", commands(ROOT / "README.md"), ids=str)
def test_a_command_of_the_readme_runs_with_its_whole_budget(command, written, capsys, monkeypatch, tmp_path):
    if not is_whole(command) or reason(command) or command.split()[1] not in QUICK:
        return  # is run above, or not at all
    words = shlex.split(command)[1:]
    prepare(words, written, capsys, monkeypatch, tmp_path)
    status, err = run(words, capsys)
    assert status == 0, err


PYTHON = [
    pytest.param(
        path,
        number,
        body,
        id=(name := f"{path.relative_to(ROOT)}-{number}"),
        marks=[pytest.mark.slow] if name in LONG_BLOCKS else [],
    )
    for path in PAGES
    if path != ROOT / "README.md"  # tests/test_readme.py
    for number, body in enumerate(re.findall(r"^```python\n(.*?)^```$", path.read_text(encoding="utf-8"), re.M | re.S))
]


@pytest.mark.parametrize(("path", "number", "body"), PYTHON)
@pytest.mark.by_day(13)
def test_a_python_block_runs(path, number, body, monkeypatch, tmp_path):
    monkeypatch.setattr(_common, "heavy_after_import", lambda module: "")  # a process each, below
    run_block(path, number, body, monkeypatch, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "number", "body"), [case.values for case in PYTHON if case.values[0].parent.name == "plugins"]
)
def test_a_component_of_a_python_block_imports_nothing_heavy(path, number, body, monkeypatch, tmp_path):
    run_block(path, number, body, monkeypatch, tmp_path)


def run_block(path, number, body, monkeypatch, tmp_path):
    """Import a block as a module in an empty folder, and check the components that a page of plugins defines."""
    monkeypatch.chdir(tmp_path)
    # A module of its own, so that the classes in it can be pickled.
    name = re.sub(r"\W", "_", f"{path.relative_to(ROOT).with_suffix('')}_{number}").lower()
    (tmp_path / f"{name}.py").write_text(body, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module(name)
    for cls in vars(module).values() if path.parent.name == "plugins" else ():
        if isinstance(cls, type) and issubclass(cls, Registered) and cls.__module__ == name:
            with pytest.raises(AssertionError) if cls.name in UNFIT else nullcontext():
                check_component(cls)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [["agreement.py", "--level", "coupled"], ["planning.py", "vgg-19"], ["search_speed.py", "--part", "20"]],
    ids=lambda words: words[0],
)
def test_a_benchmark_runs(words):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TOPOPLAN_")}
    process = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / words[0]), *words[1:]],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout
